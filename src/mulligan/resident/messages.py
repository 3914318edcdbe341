"""What a client sends to the helper, and what it gets.

A request is texts that end with a zero byte: the magic word, the version of the client, the id of
the event, the agent, options, variables as ``NAME=VALUE``, and an empty one. The hook's JSON
follows, up to the end of the stream. A reply is one byte and, after ``k``, what the hook prints.
"""

from __future__ import annotations

import msgspec

from mulligan.errors import InvalidHook

MAGIC = b"mulligan-hook-1"
MAX_BYTES = 40 << 20
"""The longest request: hook JSON may have 32 MiB."""

FIXED = 4
"""How many texts come before the variables."""

MAX_TEXTS = 1000

CREATE = "--create"
"""The option of hooks that make a store for a project which has none."""

ANSWERED = b"k"
OTHER_VERSION = b"v"
FAILED = b"e"


class HookRequest(msgspec.Struct, frozen=True):
    """One event of a coding agent, as a client sends it."""

    version: str
    id: str
    agent: str
    options: str
    variables: dict[str, str]
    data: bytes


def encode_request(request: HookRequest) -> bytes:
    """Return a request as bytes."""
    pairs = [f"{name}={value}" for name, value in request.variables.items()]
    texts = [request.version, request.id, request.agent, request.options, *pairs, ""]
    head = b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in texts)
    return MAGIC + b"\0" + head + request.data


def decode_request(data: bytes) -> HookRequest:
    """Return the request in bytes, or raise ``InvalidHook``."""
    texts: list[str] = []
    magic, _, rest = data.partition(b"\0")
    if magic != MAGIC:
        raise InvalidHook("The request to the helper does not begin as one.")
    while len(texts) < MAX_TEXTS:
        text, end, rest = rest.partition(b"\0")
        if not end:
            raise InvalidHook("The request to the helper is cut.")
        if not text and len(texts) >= FIXED:
            break
        texts.append(text.decode("utf-8", "surrogateescape"))
    version, id, agent, options, *pairs = texts
    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return HookRequest(version, id, agent, options, variables, rest)
