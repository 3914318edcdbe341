"""The retention policy: which checkpoints stay, and how far back every event does.

It is the table ``[retention]`` of a store's ``config.toml`` or of a workflow file. What a table
does not say has its default. A limit that is 0 keeps nothing by itself; rules add up, and no rule
takes away what another one keeps. The quota alone removes what limits keep, and never what is
kept for its own sake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from mulligan import layout
from mulligan.config.tables import Count, Duration, Place, TableReader, described
from mulligan.config.values import MAX_SECONDS, duration, duration_text, size
from mulligan.errors import InvalidName
from mulligan.session.names import check_name

HOUR = 3600.0
DAY = 24 * HOUR
WEEK = 7 * DAY

TABLE = "retention"
ROUTINE, PRE_OPERATION, RECOVERY, MANUAL = "routine", "pre_operation", "recovery", "manual"
KINDS = (ROUTINE, PRE_OPERATION, RECOVERY, MANUAL)
"""The kinds with a table of their own; others are in ``[retention.kinds]``, or like routine."""

PROMPT = "prompt"
"""The kind of the checkpoints before the prompts of coding agents."""

TOOLS = "tools"
"""The kind of the checkpoints after the tools of coding agents."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of each agent's checkpoints; they add up.

    ``keep_hourly`` keeps the newest checkpoint of each of that many hours, in UTC, counting only
    hours that have one; so do the others for days, weeks from Monday on, and months.
    """

    keep_all: bool = False
    keep_last: int = 0
    keep_within: float = 0.0
    keep_hourly: int = 0
    keep_daily: int = 0
    keep_weekly: int = 0
    keep_monthly: int = 0

    def __post_init__(self) -> None:
        """Refuse negative limits, and limits beside ``keep_all``, which would limit nothing."""
        for name, limit in self.limits.items():
            if limit < 0:
                raise ValueError(f"{name} is 0 or more, not {limit}")
            if self.keep_all and limit:
                raise ValueError(f"keep_all keeps every checkpoint, and {name} would keep fewer")

    @property
    def limits(self) -> dict[str, float]:
        """Every limit by its key; 0 where it keeps nothing."""
        return {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if name != "keep_all"
        }

    def __str__(self) -> str:
        """Return what is kept as it would stand in a file: ``keep_last 3, keep_within 7d``."""
        if self.keep_all:
            return "keep_all"
        return ", ".join(
            f"{name} {duration_text(limit) if name == 'keep_within' else limit}"
            for name, limit in self.limits.items()
            if limit
        )


THINNED = Rules(keep_last=3, keep_hourly=24, keep_daily=7)
"""The default of routine checkpoints."""

_ALL = Rules(keep_all=True)

PROMPTS = Rules(keep_last=20, keep_within=30 * DAY)
"""The default of checkpoints before prompts: `mulligan rewind` goes back to them."""

WINDOW = DAY
"""How far back every event stays by default."""

AFTER_TOOLS = msgspec.structs.replace(THINNED, keep_within=WINDOW)
"""The default of checkpoints after tools: their files go back as far as their events."""

KNOWN_KINDS = {"langgraph": _ALL, "agent-framework": _ALL, PROMPT: PROMPTS, TOOLS: AFTER_TOOLS}
"""The rules of kinds that adapters and hooks take, unless ``[retention.kinds]`` has others.

Checkpoints that belong to a framework are all kept: it removes them itself.
"""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep of a store.

    ``general`` applies to every checkpoint, whatever its kind, in addition to the rules of its
    kind. ``keep_failed`` is how long a checkpoint is kept whose operation failed; ``undo_window``
    how far back undo and redo reach; ``window`` how far back every event stays.
    """

    general: Rules = Rules()
    routine: Rules = THINNED
    pre_operation: Rules = THINNED
    recovery: Rules = Rules(keep_within=WEEK)
    manual: Rules = Rules(keep_all=True)
    kinds: dict[str, Rules] = {}
    keep_good: int = 3
    keep_failed: float = 30 * DAY
    undo_window: float = WEEK
    window: float = WINDOW
    quota: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("keep_good", "keep_failed", "undo_window"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is 0 or more, not {getattr(self, name)}")
        if self.window <= 0:
            raise ValueError(f"window is more than 0, not {self.window}")
        for name in ("undo_window", "window"):
            if getattr(self, name) > MAX_SECONDS:
                raise ValueError(f"{name} is at most 36500d, not {getattr(self, name)}")
        if self.quota is not None and self.quota <= 0:
            raise ValueError(f"quota is more than 0, not {self.quota}")
        if self.general.keep_all and self.quota is not None:
            raise ValueError("keep_all keeps every checkpoint, and quota would remove some")
        if twice := [name for name in self.kinds if name in KINDS]:
            raise ValueError(f"kinds has {twice[0]!r}, which has rules of its own")

    def rules_of(self, kind: str) -> tuple[str, Rules]:
        """Return the rules of a kind, and their key; kinds of programs are like routine."""
        if kind in KINDS:
            return kind, getattr(self, kind)
        if kind in self.kinds:
            return f"kinds.{kind}", self.kinds[kind]
        if kind in KNOWN_KINDS:
            return f"kinds.{kind}", KNOWN_KINDS[kind]
        return ROUTINE, self.routine

    def to_table(self) -> dict[str, Any]:
        """Return the table from which ``parse_policy`` makes this policy; it is never empty."""
        default, plain = Policy(), msgspec.to_builtins(self)
        tables = ("general", *KINDS, "kinds", "quota")
        changed = {key: plain.pop(key) for key in tables}
        kept = {k: v for k, v in changed.items() if getattr(self, k) != getattr(default, k)}
        return {**kept.pop("general", {}), **kept, **plain}


def _span(value: Any) -> float:
    return 0.0 if value == 0 else duration(value)


_Span = Annotated[str | int | float, described("a duration such as '12h' or '7d', or 0", _span)]
_Size = Annotated[str | int, described("a size such as '500MB' or '10GB'", size)]


class _RulesTable(msgspec.Struct):
    """The keys of ``[retention.KIND]``."""

    keep_all: bool
    keep_last: Count
    keep_within: _Span
    keep_hourly: Count
    keep_daily: Count
    keep_weekly: Count
    keep_monthly: Count


class _PolicyTable(_RulesTable):
    """The keys of ``[retention]``."""

    routine: _RulesTable
    pre_operation: _RulesTable
    recovery: _RulesTable
    manual: _RulesTable
    kinds: dict[str, _RulesTable]
    keep_good: Count
    keep_failed: _Span
    undo_window: _Span
    window: Duration
    quota: _Size


def parse_policy(table: Any, reader: TableReader, place: Place = (TABLE,)) -> Policy:
    """Return the policy of a table; errors are the reader's, with file, line and key."""
    fields = reader.fields(table, place, _PolicyTable)
    default = Policy()
    given = {key: fields.pop(key) for key in Rules.__struct_fields__ if key in fields}
    made: dict[str, Any] = {"general": _rules(default.general, given, reader, place)}
    limited = [key for key in (*KINDS, "kinds", "quota") if key in fields]
    if made["general"].keep_all and limited:
        problem = f"keep_all keeps every checkpoint, and {limited[0]} would keep fewer"
        raise reader.error((*place, limited[0]), problem)
    for name in KINDS:
        if name in fields:
            base = getattr(default, name)
            made[name] = _rules(base, fields.pop(name), reader, (*place, name))
    if "kinds" in fields:
        made["kinds"] = _kinds(fields.pop("kinds"), default, reader, (*place, "kinds"))
    return Policy(**made, **fields)


def _kinds(
    tables: dict[str, dict[str, Any]], default: Policy, reader: TableReader, place: Place
) -> dict[str, Rules]:
    """Return the rules of kinds that programs made up."""
    for name in tables:
        if name in KINDS:
            raise reader.error((*place, name), f"this kind has its own table, [{TABLE}.{name}]")
        try:
            check_name(name, "kind")
        except InvalidName as error:
            raise reader.error((*place, name), str(error)) from error
    return {
        name: _rules(KNOWN_KINDS.get(name, default.routine), given, reader, (*place, name))
        for name, given in tables.items()
    }


def _rules(default: Rules, given: dict[str, Any], reader: TableReader, place: Place) -> Rules:
    """Return the default rules with what was given in their place.

    A limit stands for ``keep_all`` where that is the default, and ``keep_all`` for the limits that
    are. Only both in one table contradict each other.
    """
    base = Rules() if given.get("keep_all") or (default.keep_all and given) else default
    try:
        return msgspec.structs.replace(base, **given)
    except ValueError as error:
        raise reader.error((*place, "keep_all"), str(error)) from error


def read_policy(directory: Path) -> Policy:
    """Return the policy in a store's ``config.toml``; raises ``InvalidConfig``."""
    config = layout.read_config(directory)
    return Policy() if config is None else parse_policy(config.table(TABLE), config.reader)


def with_options(policy: Policy, rules: dict[str, Any], changes: dict[str, Any]) -> Policy:
    """Return a policy with what the command line says in its place.

    ``rules`` replace those of routine and pre_operation checkpoints and of kinds that programs made
    up, not those of ``KNOWN_KINDS``; ``changes`` are other fields of the policy.
    """
    if rules:
        given = Rules(**rules)
        kinds = {
            name: known if name in KNOWN_KINDS else given for name, known in policy.kinds.items()
        }
        changes = {**changes, ROUTINE: given, PRE_OPERATION: given, "kinds": kinds}
    return msgspec.structs.replace(policy, **changes) if changes else policy
