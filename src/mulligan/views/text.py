"""Text that comes from outside, made safe to show."""

from __future__ import annotations


def clean(text: str) -> str:
    """Return text on one line, without the characters that would command a terminal."""
    return "".join(c if c.isprintable() else _harmless(c) for c in text)


def _harmless(character: str) -> str:
    return " " if character.isspace() else repr(character)[1:-1]
