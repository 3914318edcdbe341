"""The ledger of effects: where each record lies, the id of an intent, what lies beyond a point.

Records are in the document's ``control``, which no restore changes; those of local effects are in
its ``state``, because a restore undoes what they did. ``state/outside`` names what happened beyond
the present timeline; see ``docs/design/0007-effects.md``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Mapping, Sequence
from typing import Any

from mulligan import codec
from mulligan.document.document import MISSING, Document, settle
from mulligan.document.fold import CONTROL, STATE, Change, event_change
from mulligan.document.values import freeze
from mulligan.errors import LeftBehind
from mulligan.model import Holder, Path
from mulligan.session.components import EFFECTS, OUTSIDE
from mulligan.session.write import leases

INTENDED, APPROVED, DENIED = "intended", "approved", "denied"
DONE, FAILED, IN_DOUBT = "done", "failed", "in_doubt"
COMPENSATED, LEFT_BEHIND = "compensated", "left_behind"

LOCAL, IDEMPOTENT, REVERSIBLE, IRREVERSIBLE = "local", "idempotent", "reversible", "irreversible"

UNDER_WAY = (INTENDED, APPROVED)
"""The statuses of an effect that acts, if a process is named."""

INHERITED = "effects.inherited"

ID_CHARACTERS = 16
_SUMMARY = ("name", "kind", "intent", "identity", "result", "status", "agent", "task", "at")
"""What ``state/outside`` tells of an effect."""

Record = Mapping[str, Any]


def intent_id(name: str, *parts: Any) -> str:
    """Return the id of an intent: equal parts, equal id."""
    data = settle(freeze([name, *parts]), codec.value_digest)
    return codec.value_digest(data).hex()[:ID_CHARACTERS]


def identity_of(intent: Any, fields: Sequence[str] | None) -> str:
    """Return what tells an intent from others: all of it, or its declared fields, normalised."""
    if fields is not None and isinstance(intent, Mapping):
        intent = {field: intent.get(field) for field in fields}
    return intent_id("", _normal(intent))


def _normal(value: Any) -> Any:
    """Return a value without what may differ between two wordings of it: case, spaces, nulls."""
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFKC", value).casefold().split())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _normal(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_normal(item) for item in value]
    return value


def place_of(kind: str, id: str) -> Path:
    """Return where the record of an effect of a kind lies in the document."""
    return (*(STATE if kind == LOCAL else CONTROL), EFFECTS, id)


def find(document: Document, id: str) -> dict[str, Any] | None:
    """Return the record of an effect, as plain values."""
    for above in (CONTROL, STATE):
        found = document.find((*above, EFFECTS, id))
        if found is not MISSING:
            plain = document.plain(found)
            return plain if isinstance(plain, dict) else None
    return None


def records(document: Document) -> dict[str, dict[str, Any]]:
    """Return all records by their ids, in the order in which they were first intended."""
    found: dict[str, dict[str, Any]] = {}
    for above in (CONTROL, STATE):
        found |= _entries(document, (*above, EFFECTS))
    return dict(sorted(found.items(), key=lambda item: (item[1].get("seq", 0), item[0])))


def outside(document: Document) -> dict[str, dict[str, Any]]:
    """Return what the state says of effects beyond its timeline, by their ids."""
    return _entries(document, (*STATE, OUTSIDE))


def is_outside(document: Document, id: str) -> bool:
    """Whether an effect lies beyond the timeline of a document."""
    return document.find((*STATE, OUTSIDE, id)) is not MISSING


def _entries(document: Document, path: Path) -> dict[str, dict[str, Any]]:
    found = document.find(path)
    plain = None if found is MISSING else document.plain(found)
    entries = plain.items() if isinstance(plain, dict) else ()
    return {id: record for id, record in entries if isinstance(record, dict)}


def effect_change(kind: str, id: str, record: Record, fields: Mapping[str, Any]) -> Change:
    """Return an event that sets fields of a record; ``record`` says where it lies.

    ``None`` as a field's value is stored: an absent field and null read the same.
    """
    facts = {"effect": id, "name": record["name"]}
    for name in ("status", "error", "by", "note"):
        if fields.get(name) is not None:
            facts[name] = fields[name]
    changes = [[[EFFECTS, id, key], freeze(value)] for key, value in fields.items()]
    if record["kind"] == LOCAL:
        return event_change(kind, changes, **facts)
    return event_change(kind, control=changes, **facts)


def returned_changes(document: Document, id: str, name: str) -> list[Change]:
    """Return the event that takes an effect out of ``outside``, if it is there.

    It happens again on the present timeline, was undone, or did not happen after all.
    """
    if not is_outside(document, id):
        return []
    return [event_change("effect.returned", [[[OUTSIDE, id]]], effect=id, name=name)]


def new_change(kind: str, id: str, record: Record) -> Change:
    """Return the event that puts a whole record into the ledger."""
    facts = {"effect": id, "name": record["name"], "status": record["status"]}
    changes = [[[EFFECTS, id], freeze(dict(record))]]
    if record["kind"] == LOCAL:
        return event_change(kind, changes, **facts)
    return event_change(kind, control=changes, **facts)


def is_under_way(record: Record) -> bool:
    """Whether a process acts, or acted when it died."""
    return record.get("status") in UNDER_WAY and record.get("acting") is not None


def is_abandoned(record: Record) -> bool:
    """Whether the process that acted is gone without an outcome."""
    return is_under_way(record) and leases.is_dead(holder_of(record))


def holder_of(record: Record) -> Holder:
    """Return the process that acts; a handle's number behind it is left out."""
    return Holder.parse(str(record.get("acting")).split("#")[0])


def status_of(record: Record, id: str, beyond: Container[str]) -> str:
    """Return the status as a reader sees it: doubt and what was left behind are derived."""
    status = str(record.get("status"))
    if is_abandoned(record):
        status = IN_DOUBT
    # One in doubt has to be settled, wherever it lies.
    return LEFT_BEHIND if status == DONE and id in beyond else status


def ledger_of(document: Document) -> dict[str, dict[str, Any]]:
    """Return the records that no restore changes."""
    return _entries(document, (*CONTROL, EFFECTS))


def beyond(now: Document, then: Document | None) -> dict[str, dict[str, Any]]:
    """Return the effects that happened, or may have, and are not on the timeline of ``then``.

    None is the empty document: everything is beyond it.
    """
    return _beyond(ledger_of(now), then)


def _beyond(
    known: Mapping[str, dict[str, Any]], then: Document | None
) -> dict[str, dict[str, Any]]:
    before = {} if then is None else ledger_of(then)
    out = {} if then is None else outside(then)
    found = {}
    for id, record in known.items():
        was = before.get(id, {}).get("status")
        has_happened = record.get("status") in (DONE, IN_DOUBT) or is_under_way(record)
        if has_happened and (was not in (DONE, IN_DOUBT) or id in out):
            found[id] = record
    return dict(sorted(found.items(), key=lambda item: (item[1].get("seq", 0), item[0])))


def outside_changes(
    now: Document, then: Document | None, agent: str | None = None
) -> list[list[Any]]:
    """Return the changes of the state that make ``outside`` right after going to ``then``.

    They follow those that bring the state back. With ``agent``, only that one goes back.
    """
    found = beyond(now, then)
    had = {} if then is None else outside(then)
    told = {}
    if agent is not None:
        found = {id: record for id, record in found.items() if record.get("agent") == agent}
        had = told = outside(now)
    told = {**told, **{id: _summary(record) for id, record in found.items()}}
    return [] if told == had else [[[OUTSIDE], freeze(told)]]


def _summary(record: Record) -> dict[str, Any]:
    told = {key: record[key] for key in _SUMMARY if key in record}
    return {**told, "status": IN_DOUBT} if is_under_way(record) else told


def left_behind(
    now: Document, then: Document, undoable: Container[str] = (), agent: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return the effects that a restore to ``then`` leaves behind, and has to be accepted for.

    ``undoable`` are the names of effects whose undo is a function of this program. Those that lie
    outside already were accepted before. With ``agent``, only that one goes back.
    """
    return {
        id: record
        for id, record in beyond(now, then).items()
        if needs_acceptance(record, undoable)
        and not is_outside(now, id)
        and agent in (None, record.get("agent"))
    }


def refuse_left_behind(now: Document, then: Document, undoable: Container[str] = ()) -> None:
    """Raise ``LeftBehind`` if a restore to ``then`` would leave effects behind."""
    left = left_behind(now, then, undoable)
    if not left:
        return
    said = ", ".join(f"{record['name']} ({id})" for id, record in list(left.items())[:5])
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    what = "1 effect" if len(left) == 1 else f"{len(left)} effects"
    raise LeftBehind(f"{what} after the point cannot be undone: {said}{more}.")


def restore_facts(now: Document, then: Document, agent: str | None) -> dict[str, Any]:
    """Return what the event of a restore says of effects: those that its caller accepted."""
    left = left_behind(now, then, agent=agent)
    return {"left_behind": list(left)} if left else {}


def inherited_change(known: Mapping[str, dict[str, Any]], then: Document) -> Change | None:
    """Return the event that gives a fork at ``then`` the ledger of those that it comes from.

    Questions stay there: an approval is for one session.
    """
    kept = {
        id: {**record, "status": IN_DOUBT} if is_under_way(record) else record
        for id, record in known.items()
        if record.get("status") in (DONE, FAILED, IN_DOUBT, COMPENSATED) or is_under_way(record)
    }
    if not kept:
        return None
    told = {id: _summary(record) for id, record in _beyond(kept, then).items()}
    changes = [] if told == outside(then) else [[[OUTSIDE], freeze(told)]]
    return event_change(INHERITED, changes, control=[[[EFFECTS], freeze(kept)]])


def needs_acceptance(record: Record, undoable: Container[str]) -> bool:
    """Whether a restore beyond which the effect lies must be accepted by its caller.

    ``undoable`` are the names of effects whose undo is a function of this program.
    """
    kind, status = record.get("kind"), record.get("status")
    if kind == IDEMPOTENT:
        return False
    if kind != REVERSIBLE or status != DONE:
        return True
    undo = record.get("undo")
    return not (isinstance(undo, list) or record.get("name") in undoable)
