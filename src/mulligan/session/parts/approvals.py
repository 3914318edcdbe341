"""Approvals: effects that wait for an answer, and the answers.

An answer is one transaction, with who gave it and when. It is used up by the effect that it was
given for; nothing ever makes it valid again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mulligan.document.values import freeze
from mulligan.errors import Conflict, InvalidEffect
from mulligan.failpoints import Failpoint
from mulligan.model import Effect
from mulligan.session import arguments
from mulligan.session.parts.admission import is_expired
from mulligan.session.parts.effects import Effects, known_effect
from mulligan.session.write import ledger
from mulligan.session.write.ledger import APPROVED, DENIED, INTENDED
from mulligan.session.write.writer import Work, Writer

POLL_SECONDS = 0.2
"""How often a wait for an answer looks again."""

Answer = Callable[[Effect], bool | None]
"""Answers for a person: True approves, False denies, None leaves the question open."""

_TYPES: tuple[tuple[type, ...], ...] = ((bool,), (int, float), (str,), (list, tuple), (dict,))


class Approvals:
    """The questions of a session that a person, or a function of the program, answers."""

    def __init__(self, writer: Writer, effects: Callable[[], Effects]) -> None:
        self._writer = writer
        self._effects = effects
        self._callback: Answer | None = None

    def pending(self) -> list[Effect]:
        """Return the effects that wait for approval, oldest first."""
        return list(self._effects().list(pending=True))

    def approve(
        self,
        id: str,
        *,
        edit: Mapping[str, Any] | None = None,
        note: str | None = None,
        by: str | None = None,
    ) -> Effect:
        """Approve an effect once; ``edit`` changes fields of its intent.

        The effect happens when its agent asks for it again. Raises ``Conflict`` if there is no
        question any more, and ``InvalidEffect`` for an edit that would make it another effect.
        """
        return self._answered(id, APPROVED, edit, note, by)

    def deny(self, id: str, *, note: str | None = None, by: str | None = None) -> Effect:
        """Deny an effect: its agent gets ``EffectDenied``."""
        return self._answered(id, DENIED, None, note, by)

    def answer_with(self, callback: Answer | None) -> None:
        """Let a function of this program answer the questions of this handle."""
        if callback is not None and not callable(callback):
            raise InvalidEffect(f"Questions are answered by a function, not {callback!r}.")
        self._callback = callback

    def wait(self, id: str, timeout: float) -> Effect:
        """Wait for the answer to a question, and return the effect then, or after ``timeout``."""
        clock = self._writer.engine.clock
        until = clock.monotonic() + arguments.seconds(timeout, "A timeout", zero=True)
        while (effect := self._effects().get(id)).is_pending and clock.monotonic() < until:
            # Polled: the answer may come from any process.
            clock.sleep(POLL_SECONDS)
        return effect

    def answer(self, effect: Effect) -> bool:
        """Ask the program's function; return whether it answered."""
        if self._callback is None:
            return False
        given = self._callback(effect)
        if given is None:
            return False
        by = getattr(self._callback, "__name__", "callback")
        if given:
            self.approve(effect.id, by=by)
        else:
            self.deny(effect.id, by=by)
        return True

    def _answered(
        self,
        id: str,
        status: str,
        edit: Mapping[str, Any] | None,
        note: str | None,
        by: str | None,
    ) -> Effect:
        arguments.optional_text(note, "A note", InvalidEffect)
        who, now = by or self._writer.actor, self._writer.engine.clock.now()
        kind = "approval.granted" if status == APPROVED else "approval.denied"

        def decide(work: Work) -> str:
            known, record = known_effect(work.document, id)
            # Inside the decision: of two people who answer at once, one gets ``Conflict``.
            _check_open(known, record, now)
            answer = {**record["question"], "by": who, "answered": now, "note": note}
            fields: dict[str, Any] = {"status": status, "question": answer}
            if edit is not None:
                fields["intent"] = _edited(record, edit)
            change = ledger.effect_change(kind, known, record, fields)
            facts = {"by": who, **({} if note is None else {"note": note})}
            work.add((change[0], {**change[1], **facts}))
            return known

        answered = self._writer.commit(decide)
        self._writer.engine.failpoint(Failpoint.EFFECT_ANSWERED)
        return self._effects().get(answered)


def _check_open(id: str, record: Mapping[str, Any], now: Any) -> None:
    """Raise ``Conflict`` unless an effect waits for an answer."""
    is_open = record["status"] == INTENDED and record.get("acting") is None
    if is_open and record.get("question") and not is_expired(record, now):
        return
    what = record["status"]
    if is_expired(record, now):
        what = "denied: there was no answer in time"
    elif record["status"] == APPROVED and record.get("acting") is None:
        what = "approved already"
    elif ledger.is_under_way(record):
        what = "being performed"
    raise Conflict(
        f"The effect {id} ({record['name']}) is {what}; it waits for no answer.",
        hint="Nothing was written. `mulligan effects --pending` lists what waits.",
    )


def _edited(record: Mapping[str, Any], edit: Any) -> dict[str, Any]:
    """Return the intent with some fields changed; it must stay the same effect."""
    intent = record["intent"]
    if not isinstance(edit, Mapping) or not isinstance(intent, Mapping):
        raise _refused("an edit changes fields of an intent that has fields")
    for field, value in edit.items():
        if field not in intent:
            known = ", ".join(map(str, intent)) or "none"
            raise _refused(f"the intent has no field {field!r}; it has {known}")
        if not _is_alike(intent[field], value):
            raise _refused(f"{field!r} is {_type(intent[field])}, not {value!r}")
    edited = {**intent, **edit}
    freeze(edited, ("intent",))
    fields = record.get("fields")
    if fields is not None:
        before, after = (ledger.identity_of(i, fields) for i in (intent, edited))
        if before != after:
            named = ", ".join(fields)
            raise _refused(f"{named} identify the effect, so another value is another effect")
    return edited


def _is_alike(before: Any, after: Any) -> bool:
    return before is None or after is None or _type(before) == _type(after)


def _type(value: Any) -> str:
    names = ("true or false", "a number", "a text", "a list", "an object")
    for kinds, name in zip(_TYPES, names, strict=True):
        if isinstance(value, kinds):
            return name
    return type(value).__name__


def _refused(why: str) -> InvalidEffect:
    return InvalidEffect(
        f"The edited intent cannot be used: {why}.", hint="Nothing was approved or written."
    )
