"""Names of sessions, labels, kinds and actors: which ones are valid."""

from __future__ import annotations

from string import ascii_letters, digits

from mulligan.errors import InvalidName

MAX_NAME = 120

MAX_KEY = 1_000
"""How many characters a foreign key has at most."""

_SAFE = {byte: chr(byte) for byte in (ascii_letters + digits + "._-").encode()}
"""The bytes of a text that stay as they are in a session name."""

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
        raise InvalidName(
            f"{a(what).capitalize()} has 1 to {MAX_NAME} characters, not {len(name)}."
        )
    if problem := _problem(name):
        raise InvalidName(f"The {what} {name!r} {problem}.")
    return name


def check_key(key: object) -> str:
    """Return a foreign key if it is valid, or raise ``InvalidName``."""
    hint = f"A key is any text of 1 to {MAX_KEY:,} characters."
    if not isinstance(key, str):
        raise InvalidName(f"A key is a string, not {type(key).__name__}.", hint=hint)
    if not 1 <= len(key) <= MAX_KEY:
        raise InvalidName(f"A key has 1 to {MAX_KEY:,} characters, not {len(key):,}.", hint=hint)
    if not key.isascii() and any("\ud800" <= character <= "\udfff" for character in key):
        raise InvalidName(
            "The key is not valid Unicode: it has half of a surrogate pair.", hint=hint
        )
    return key


def session_name(text: str) -> str:
    """Return a valid session name for any text, such as an id from elsewhere.

    Different texts get different names, and a text always gets the same one, in every version.
    Letters and digits of ASCII and ``.``, ``_`` and ``-`` stay as they are, unless ``-`` comes
    first; every other byte of its UTF-8 becomes ``%XX``, which ``urllib.parse.unquote`` reverses.
    A name that would be longer than 120 characters ends in ``%-`` and a digest of the text instead
    of its rest. The empty text is ``%``.
    """
    if not isinstance(text, str):
        raise InvalidName(
            f"A session name is made from a text, not from {type(text).__name__}.",
            hint="Pass str(…) of an id that is none.",
        )
    data = text.encode("utf-8", "surrogatepass")
    whole = "".join(_SAFE.get(byte) or f"%{byte:02X}" for byte in data) or "%"
    if whole[0] == "-":
        whole = f"%2D{whole[1:]}"
    if len(whole) <= MAX_NAME:
        return whole
    from blake3 import blake3  # few names are this long

    end = f"%-{blake3(data).hexdigest(length=16)}"
    return whole[: MAX_NAME - len(end)] + end


def check_agent(name: object) -> str:
    """Return the name if an agent may have it, or raise ``InvalidName``."""
    found = check_name(name, "agent name")
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
    if name.isprintable() and ":" not in name and "~" not in name:
        return None
    wrong = next(c for c in name if c in ":~" or not c.isprintable())
    return f"contains {'' if wrong in ':~' else 'the character '}{wrong!r}"
