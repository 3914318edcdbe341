"""Names of sessions, labels, kinds and actors: which ones are valid."""

from __future__ import annotations

from mulligan.errors import InvalidName

MAX_NAME = 120

PLAIN = "main"
"""The actor of handles that are not opened for an agent."""

PERSON = "cli"
"""The actor of commands, which tells a person's writes from an agent's."""

WORKSPACE = "workspace"
"""The part of a restore that stands for all files."""

SUPERVISOR = "supervisor"
"""The actor under whose lease a team is run."""

UPKEEP = "upkeep"
"""The actor of what is done to look after a store."""

NO_AGENTS = frozenset({PLAIN, PERSON})
"""The actors that are not agents: they have no lease and need none to write."""


def check_name(name: object, what: str) -> str:
    """Return the name if it is valid, or raise ``InvalidName``."""
    if not isinstance(name, str):
        raise InvalidName(f"{a(what).capitalize()} is a string, not {type(name).__name__}.")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"{a(what).capitalize()} of {len(name)} characters is not possible.")
    if problem := _problem(name):
        raise InvalidName(f"The {what} {name!r} {problem}.")
    return name


def check_agent(name: object, what: str = "agent name") -> str:
    """Return the name if an agent may have it, or raise ``InvalidName``."""
    found = check_name(name, what)
    if found in NO_AGENTS:
        who = "commands" if found == PERSON else "handles without an agent"
        raise InvalidName(
            f"No agent can be named {found!r}: {who} write under that name.",
            hint="Choose another name, such as 'coder' or 'worker'.",
        )
    return found


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
        if not character.isprintable():
            return f"contains the character {character!r}"
    return None
