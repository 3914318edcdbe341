"""Values of a graph as the store keeps them: by LangGraph's serializer, and never by pickle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mulligan.errors import UnstorableValue
from mulligan.integrations.langgraph.messages import PLAIN_TAG, is_message, message_decoder

NULL_TAG = "null"

PICKLE_TAG = "pickle"

ITEMS = "items"
"""The key of a list that is stored item by item."""


class ValueCodec:
    """Encodes values with a serializer of LangGraph, and decodes them.

    A value is stored as its bytes; as None; or as ``[tag, bytes]`` if the serializer gave it
    another tag, as an encrypting one does. A list among pending writes is ``{"items": […]}``.
    """

    def __init__(self, serde: Any) -> None:
        refuse_pickle(serde)
        self.serde = serde
        self._is_encrypting = isinstance(serde, EncryptedSerializer)
        self._is_plain = type(serde) is JsonPlusSerializer
        self._decode_messages = message_decoder(serde)

    def encode(self, value: Any) -> Any:
        """Return what is stored for a value; raises ``UnstorableValue`` instead of pickling."""
        try:
            tag, data = self.serde.dumps_typed(value)
        except TypeError as error:
            raise UnstorableValue(
                f"The serializer of the graph cannot store a {type(value).__name__}: {error}",
                hint="Nothing was written. Keep plain data, messages, dataclasses or pydantic "
                "models in the state of the graph, or give the saver a serde= that knows the type.",
            ) from error
        if tag == PLAIN_TAG:
            return data
        return None if tag == NULL_TAG else [_checked(tag), bytes(data)]

    def encode_whole(self, values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """Return what is stored for those of the named values that are not lists."""
        there = ((name, values[name]) for name in names if name in values)
        return {name: self.encode(value) for name, value in there if type(value) is not list}

    def decode(self, stored: Any) -> Any:
        """Return the value that :meth:`encode` stored."""
        if type(stored) is bytes:
            return self.serde.loads_typed((PLAIN_TAG, stored))
        if stored is None:
            return self.serde.loads_typed((NULL_TAG, b""))
        tag, data = stored
        return self.serde.loads_typed((_checked(tag), data))

    def encode_write(self, value: Any) -> Any:
        """Return what is stored for a pending write: of a list, every item by itself."""
        if type(value) is list:
            return {ITEMS: [self.encode(item) for item in value]}
        return self.encode(value)

    def decode_write(self, stored: Any) -> Any:
        """Return the value that :meth:`encode_write` stored."""
        return self.decode_list(stored[ITEMS]) if type(stored) is dict else self.decode(stored)

    def decode_list(self, stored: list[Any]) -> list[Any]:
        """Return the values of a list that was stored item by item."""
        # Joined to one array of msgpack: one call for all items instead of one for each.
        if self._is_plain and len(stored) > 1 and all(type(item) is bytes for item in stored):
            array = b"\xdd" + len(stored).to_bytes(4) + b"".join(stored)
            values: list[Any]
            if self._decode_messages is not None and is_message(stored[0]):
                values = self._decode_messages(array)
            else:
                values = self.serde.loads_typed((PLAIN_TAG, array))
            return values
        return [self.decode(item) for item in stored]

    def is_unchanged(self, value: Any, stored: Any) -> bool:
        """Whether a value is still the one that was stored; encryption hides that."""
        return self._is_encrypting or bool(self.encode(value) == stored)


def refuse_pickle(serde: Any) -> None:
    """Raise ``UnstorableValue`` if a serializer would pickle what it does not know."""
    inner = serde
    while inner is not None:
        if getattr(inner, "pickle_fallback", False):
            raise UnstorableValue(
                "This serializer falls back to pickle, which can run code when it is read.",
                hint="Use JsonPlusSerializer() without pickle_fallback.",
            )
        inner = getattr(inner, "serde", None)


def _checked(tag: str) -> str:
    if tag.partition("+")[0] == PICKLE_TAG:
        raise UnstorableValue(
            "The serializer of the graph pickled a value, which can run code when it is read.",
            hint="Nothing was written or read. Use a serializer without pickle.",
        )
    return tag
