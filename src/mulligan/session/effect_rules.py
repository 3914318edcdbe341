"""Rules for effects: approval, repeats, identity; from ``config.toml`` or from code.

Every question about an effect is answered by the first rule that matches it and says something
about the question. The rules of the store come before those of the program.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, get_args

import msgspec

from mulligan.config.tables import Duration, TableReader, described
from mulligan.decoding import ready
from mulligan.errors import InvalidEffect
from mulligan.model import Approval, EffectKind, EffectRule, Repeat, Stakes

TABLE = "effects"

STAKES: tuple[Stakes, ...] = get_args(Stakes)
KINDS: tuple[EffectKind, ...] = get_args(EffectKind)
_CHOICES: dict[str, tuple[str, ...]] = {
    "kind": KINDS,
    "stakes": STAKES,
    "approval": get_args(Approval),
    "repeat": get_args(Repeat),
}

DEFAULT = EffectRule(approval="auto", repeat="reuse")


def _choice(name: str) -> Any:
    known = _CHOICES[name]

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"this is one of {', '.join(known)}, not {value!r}")
        return value

    return described(f"one of {', '.join(known)}", read)


class _RuleTable(msgspec.Struct):
    """The keys of ``[[effects.rules]]``."""

    name: str
    kind: Annotated[str, _choice("kind")]
    stakes: Annotated[str, _choice("stakes")]
    approval: Annotated[str, _choice("approval")]
    timeout: Duration
    repeat: Annotated[str, _choice("repeat")]
    identity: list[str]
    checkpoint: bool


class _EffectsTable(msgspec.Struct):
    """The keys of ``[effects]``."""

    rules: list[_RuleTable]


def parse_rules(table: Any, reader: TableReader) -> tuple[EffectRule, ...]:
    """Return the rules of a table; errors are the reader's, with file, line and key."""
    fields = reader.fields(table, (TABLE,), _EffectsTable)
    return tuple(make_rule(**given) for given in fields.get("rules", []))


def make_rule(name: Any = "*", **given: Any) -> EffectRule:
    """Return a rule; raises ``InvalidEffect`` for values that it cannot have."""
    if not isinstance(name, str) or not name:
        raise InvalidEffect(f"A rule is for names such as 'mail.*', not {name!r}.")
    if unknown := given.keys() - {*EffectRule.__struct_fields__}:
        raise InvalidEffect(f"A rule has no {', '.join(sorted(unknown))}.")
    for key, known in _CHOICES.items():
        if given.get(key) is not None and given[key] not in known:
            raise InvalidEffect(f"{key}= is one of {', '.join(known)}, not {given[key]!r}.")
    if given.get("identity") is not None:
        given["identity"] = tuple(given["identity"])
    try:
        return msgspec.convert({"name": name, **given}, ready(EffectRule))
    except msgspec.ValidationError as error:
        raise InvalidEffect(f"This is no rule for effects: {error}.") from error


def decide(rules: Sequence[EffectRule], name: str, kind: str, stakes: str) -> EffectRule:
    """Return one rule that answers everything about an effect."""
    matching = [rule for rule in (*rules, DEFAULT) if _matches(rule, name, kind, stakes)]
    answers = {
        key: _first(getattr(rule, key) for rule in matching)
        for key in ("approval", "timeout", "repeat", "identity", "checkpoint")
    }
    return EffectRule(name=name, **answers)


def _matches(rule: EffectRule, name: str, kind: str, stakes: str) -> bool:
    if rule.kind is not None and rule.kind != kind:
        return False
    if rule.stakes is not None and STAKES.index(stakes) < STAKES.index(rule.stakes):
        return False
    return fnmatch.fnmatchcase(name, rule.name)


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)
