"""What signals see of a run, whatever recorded it: actions, messages, cycles and progress."""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec
from blake3 import blake3

Kind = Literal["action", "message", "cycle", "progress", "reset"]

ACTION: Kind = "action"
MESSAGE: Kind = "message"
CYCLE: Kind = "cycle"
PROGRESS: Kind = "progress"
RESET: Kind = "reset"

KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_TEXT = 600
"""Characters of a text that signals compare; the adapters cut longer ones with ``cut``."""


class Observation(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that happened in a run; ``seq`` is its event, or its step in a trace.

    An action is a finished call: ``name``, ``text`` (its arguments), ``result``, ``failed``. A
    message is ``text`` that was said without acting. A cycle ends one turn of the agent's loop and
    took ``seconds``. Progress is a task, a file or a part of the state (``name``) that changed at a
    key (``text``) to a content (``result``); ``failed`` if it goes backwards. A reset says that
    the agent starts over: with a clean context, or with a restored state. ``time`` is in seconds
    from any fixed moment. ``context`` is the size of the agent's context, in tokens or bytes.
    """

    kind: Kind
    seq: int
    actor: str = ""
    name: str = ""
    text: str = ""
    result: str = ""
    failed: bool = False
    time: float | None = None
    seconds: float | None = None
    context: int | None = None


# One pattern each, and the sign without which it cannot match: all in one would take much longer.
_VOLATILE = (
    ("0x", re.compile(r"0x[0-9a-f]+")),
    ("-", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")),
    (":", re.compile(r"\d{4}-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:z|[+-]\d\d:?\d\d)?")),
    (":", re.compile(r"\d\d:\d\d:\d\d(?:\.\d+)?")),
    ("tmp", re.compile(r"tmp[0-9a-z_]{6,}")),
    ("", re.compile(r"\d{9,}")),  # seconds since 1970, numbers of requests
)
WORD = re.compile(r"[^\W_]+")


def near(text: str) -> int:
    """Return a number that is equal for texts that say the same in another form.

    Case, punctuation, white space and the order of words do not count, nor do addresses, UUIDs,
    times of day and the names of temporary files. Other numbers and names do: work through a list
    of files looks alike, and is not a loop.
    """
    folded = text.lower()
    for sign, pattern in _VOLATILE:
        if sign in folded:
            folded = pattern.sub(" ", folded)
    words = sorted(set(WORD.findall(folded)))
    # A text of signs alone, such as {} or "...", is compared as it is.
    return digest(" ".join(words) if words else folded.strip())


def digest(*parts: str) -> int:
    """Return a number of 63 bits for texts; it is the same in every process."""
    data = "\0".join(parts).encode(errors="surrogatepass")
    return int.from_bytes(blake3(data).digest(8)) >> 1


def cut(text: str) -> str:
    """Return a text that is not longer than ``MAX_TEXT``, and differs where the whole does."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} {digest(text):016x}"
