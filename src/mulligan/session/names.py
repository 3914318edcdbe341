"""Names of sessions, labels, kinds and actors: what may be one."""

from __future__ import annotations

import unicodedata

from mulligan.errors import InvalidName

MAX_NAME = 120


def check_name(name: object, what: str) -> str:
    """Return the name if it may be one, or raise ``InvalidName``."""
    if not isinstance(name, str):
        raise InvalidName(f"{a(what).capitalize()} is a string, not {type(name).__name__}.")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"{a(what).capitalize()} of {len(name)} characters is not possible.")
    if problem := _problem(name):
        raise InvalidName(f"The {what} {name!r} {problem}.")
    return name


def a(noun: str) -> str:
    """Return a noun with the article that it takes."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _problem(name: str) -> str | None:
    if name != name.strip():
        return "has a space at an end"
    if name[0] in "@#-":
        return f"starts with {name[0]!r}"
    for character in name:
        if character in ":~":
            return f"contains {character!r}"
        if unicodedata.category(character)[0] in "CZ" and character != " ":
            return f"contains the character {character!r}"
    return None
