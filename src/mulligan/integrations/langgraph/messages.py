"""Long lists of messages, decoded without looking up the class of each message.

LangGraph's serializer finds the class of every message by importing its module again. The classes
of messages are known here; everything else is decoded by the serializer itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

PLAIN_TAG = "msgpack"
"""The tag of nearly all values; it is left out."""

_CLASSES = {
    (one.__module__, one.__name__): one
    for one in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
}

_BEGINNING = 64
"""The name of a message's module is among this many bytes of its encoding."""

_MODULES = b"langchain_core.messages."

Decode = Callable[[bytes], Any]


def message_decoder(serde: Any) -> Decode | None:
    """Return what decodes bytes as a serializer does; None if it decodes in a way of its own."""
    # Only if it is known that there is no hook of the program's.
    if type(serde) is not JsonPlusSerializer or vars(serde).get("_custom_unpack_ext_hook", True):
        return None

    def by_serializer(code: int, data: bytes) -> Any:
        # As the extension type that it is among other data: 32 bits of length, then the code.
        return serde.loads_typed(
            (PLAIN_TAG, b"\xc9" + len(data).to_bytes(4) + bytes([code]) + data)
        )

    def hook(code: int, data: bytes) -> Any:
        if code != EXT_PYDANTIC_V2:
            return by_serializer(code, data)
        try:
            module, name, fields, _ = ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION)
            return _CLASSES[module, name](**fields)
        except Exception:
            # Of another class, or of a version whose fields do not fit: the serializer knows.
            return by_serializer(code, data)

    return lambda data: ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION)


_OPTION = ormsgpack.OPT_NON_STR_KEYS


def is_message(stored: bytes) -> bool:
    """Whether bytes are those of a message, as far as their beginning shows."""
    return _MODULES in stored[:_BEGINNING]
