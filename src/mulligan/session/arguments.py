"""Checks of arguments: a wrong one is refused with a clear error before anything changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from mulligan.document.values import PathLike, freeze
from mulligan.errors import (
    InvalidEffect,
    InvalidPath,
    InvalidTask,
    MulliganError,
    UnsafeWorkspace,
)

MAX_SHOWN_CHARACTERS = 60
"""How many characters of a wrong argument are shown."""


def parts(only: Any) -> list[PathLike] | None:
    """Return the named parts; a plain string is refused, because it would be split into letters."""
    if only is None:
        return None
    if isinstance(only, str | bytes | os.PathLike | Mapping) or not isinstance(only, Iterable):
        raise InvalidPath(
            f"only= is a list of parts, not {_shown(only)}.",
            hint='Nothing was changed. Write only=["memory"] for one part.',
        )
    named = list(only)
    if "" in named:
        raise InvalidPath(
            "only= has an empty name for a part.",
            hint="Nothing was changed. Omit only= to include everything.",
        )
    for part in named:
        if isinstance(part, bytes) or not isinstance(part, str | list | tuple):
            raise InvalidPath(
                f"A part is named by a text or a path, not by {_shown(part)}.",
                hint='Nothing was changed. Write "memory" or "src/app.py", for example.',
            )
    return named


def items(values: Any, what: str, refusal: type[MulliganError], hint: str) -> list[Any]:
    """Return the items of an iterable; a string or a dict is refused, because it is one item."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise refusal(f"{what}, not {_shown(values)}.", hint=hint)
    return list(values)


def seconds(value: Any, what: str, *, zero: bool = False) -> float:
    """Return a positive number of seconds; with ``zero``, 0 is allowed."""
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    # Not ``value < 0``: it is false for NaN.
    if wrong or not value >= 0 or (value == 0 and not zero):
        least = "0 seconds or more" if zero else "more than 0 seconds"
        raise InvalidTask(f"{what} is {least}, not {_shown(value)}.")
    return float(value)


def outcome(what: str, given: Any, result: Any, note: Any) -> None:
    """Check what is said of an effect, or of a call, that is in doubt."""
    if given not in ("done", "failed"):
        raise InvalidEffect(f"{what} is settled as done or failed, not {given!r}.")
    if given == "failed" and result is not None:
        raise InvalidEffect(f"{what} that did not happen has no result.")
    freeze(result, ("result",))
    optional_text(note, "A note", InvalidEffect)


def count(value: Any, what: str) -> int:
    """Return a number of things, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidPath(
            f"{what} is a whole number of 0 or more, not {_shown(value)}.",
            hint="Nothing was changed.",
        )
    return value


def text(value: Any, what: str, refusal: type[MulliganError] = InvalidTask) -> str:
    """Return a string; any other type would not be read back unchanged."""
    if not isinstance(value, str):
        raise refusal(f"{what} is a text, not {_shown(value)}.")
    return value


def optional_text(value: Any, what: str, refusal: type[MulliganError] = InvalidTask) -> str | None:
    """Return a string or None."""
    return None if value is None else text(value, what, refusal)


def directory(path: Any, what: str) -> str | os.PathLike[str]:
    """Return the path of a directory; an empty path, as from an unset variable, is refused."""
    if not isinstance(path, str | os.PathLike):
        hint = "Nothing was touched. A path is a text or a pathlib.Path."
        raise UnsafeWorkspace(f"{what} is a path, not {_shown(path)}.", hint=hint)
    if not (name := os.fsencode(path)) or b"\0" in name:
        wrong = "has a null byte" if name else "is an empty path"
        raise UnsafeWorkspace(
            f"{what} {wrong}.", hint='Nothing was touched. "." is the current directory.'
        )
    return path


def _shown(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= MAX_SHOWN_CHARACTERS else f"{said[:MAX_SHOWN_CHARACTERS]}…"
