"""Values are stored by LangGraph's serializer, item by item, and never by pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mulligan.errors import UnstorableValue
from tests.frameworks.langgraph.graphs import loop_graph, start
from tests.frameworks.needed import needed

needed("langgraph.checkpoint")

Config = dict[str, Any]


class Odd:
    """A type that no serializer knows."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch /tmp/never",))


def test_a_serializer_that_pickles_is_refused(tmp_path: Path) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from mulligan.integrations.langgraph import MulliganSaver

    serde = JsonPlusSerializer(pickle_fallback=True)
    with pytest.raises(UnstorableValue, match="pickle"):
        MulliganSaver(tmp_path / "store", serde=serde)


def test_a_serializer_inside_of_an_encrypting_one_is_looked_at(tmp_path: Path) -> None:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from mulligan.integrations.langgraph import MulliganSaver

    serde = EncryptedSerializer(Reversing(), JsonPlusSerializer(pickle_fallback=True))
    with pytest.raises(UnstorableValue, match="pickle"):
        MulliganSaver(tmp_path / "store", serde=serde)


def test_a_value_that_only_pickle_could_store_is_refused(saver: Any, config: Config) -> None:
    graph = loop_graph(saver, until=1)
    graph.invoke(start(), config)
    with pytest.raises(UnstorableValue, match="Odd"):
        saver.put_writes(graph.get_state(config).config, [("n", Odd())], "task")


def test_pickled_bytes_in_a_store_are_not_read() -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from mulligan.integrations.langgraph.values import ValueCodec

    with pytest.raises(UnstorableValue, match="pickle"):
        ValueCodec(JsonPlusSerializer()).decode(["pickle", b"cos\nsystem\n(S'true'\ntR."])


def test_a_checkpoint_has_what_the_graph_had_when_it_was_put(
    saver: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default a graph goes on while a checkpoint is saved, and gives its messages ids."""
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.base import empty_checkpoint

    said = HumanMessage("hello")
    make = saver.store.session

    def made_while_the_graph_goes_on(*args: Any, **options: Any) -> Any:
        said.id = "given later"
        return make(*args, **options)

    monkeypatch.setattr(saver.store, "session", made_while_the_graph_goes_on)
    values = {"__start__": {"messages": [said]}}
    checkpoint = {**empty_checkpoint(), "channel_values": values}
    checkpoint["channel_versions"] = {"__start__": 1}
    place = {"configurable": {**config["configurable"], "checkpoint_ns": ""}}
    saved = saver.put(place, checkpoint, {}, checkpoint["channel_versions"])
    assert said.id == "given later"
    stored = saver.get_tuple(saved).checkpoint["channel_values"]
    assert stored == {"__start__": {"messages": [HumanMessage("hello")]}}


class Reversing:
    """A cipher that turns bytes around, and counts, as real ones do, so nothing looks alike."""

    def __init__(self) -> None:
        self.count = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.count += 1
        return "reversing", self.count.to_bytes(4) + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[4:][::-1]


def test_encrypted_values_are_encrypted_in_the_store(tmp_path: Path, config: Config) -> None:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    from mulligan.integrations.langgraph import MulliganSaver

    serde = EncryptedSerializer(Reversing())
    with MulliganSaver(tmp_path / "store", serde=serde) as saver:
        graph = loop_graph(saver)
        graph.invoke(start("a secret that nobody shall read"), config)
        graph.update_state(config, {"n": 3})
        found = [message.content for message in graph.get_state(config).values["messages"]]
    assert found == ["a secret that nobody shall read", *(f"answer {n}" for n in range(5))]
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"that nobody shall read" not in stored


def test_every_type_of_the_serializer_comes_back(saver: Any, config: Config) -> None:
    import datetime
    import decimal
    import uuid

    from langchain_core.messages import AIMessage, ToolMessage
    from langgraph.types import Send

    values = {
        "none": None,
        "bytes": b"\x00\xff",
        "empty": [],
        "nested": [[1, 2], {"a": [None, 1.5]}, "text", b"bytes"],
        "big": "x" * 10_000,
        "numbers": [0, -1, 2**63, 1.5],
        "times": [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(3)],
        "ids": {"id": uuid.UUID(int=7), "price": decimal.Decimal("1.10")},
        "messages": [
            AIMessage(content="", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}]),
            ToolMessage(content="done", tool_call_id="c1"),
        ],
        "sends": [Send("node", {"x": 1})],
    }
    saved = put(saver, config, values, 1)
    found = saver.get_tuple(saved).checkpoint["channel_values"]
    assert found == values
    assert saver.get_tuple(saved).checkpoint["channel_values"] is not found


def messages() -> list[Any]:
    """Return messages of every kind, with a value of another type inside, and other items."""
    from datetime import UTC, datetime
    from decimal import Decimal

    from langchain_core.documents import Document
    from langchain_core.messages import (
        AIMessage,
        AIMessageChunk,
        ChatMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
    )

    call = {"name": "search", "args": {"text": "x"}, "id": "1", "type": "tool_call"}
    return [
        HumanMessage("question", additional_kwargs={"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        SystemMessage([{"type": "text", "text": "be brief"}], id="system"),
        AIMessage("", tool_calls=[call], usage_metadata=None, response_metadata={"n": Decimal(2)}),
        ToolMessage("found", tool_call_id="1", artifact={"rows": [1, 2]}, status="error"),
        ChatMessage("other", role="critic"),
        AIMessageChunk("part"),
        Document("text", metadata={"of": (1, 2)}),
        datetime(2026, 1, 2, tzinfo=UTC),
        {"role": "user", "content": "plain"},
        "text",
        None,
    ]


def test_lists_of_messages_are_decoded_as_the_serializer_does() -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from mulligan.integrations.langgraph.values import ValueCodec

    serde = JsonPlusSerializer()
    codec = ValueCodec(serde)
    # The value None is stored as such, and not among bytes.
    stored = [codec.encode(item) for item in messages() if item is not None]
    expected = [codec.decode(item) for item in stored]
    found = codec.decode_list(stored)
    assert found == expected
    assert [type(item) for item in found] == [type(item) for item in expected]
    assert codec.decode_list([codec.encode(item) for item in messages()])[-1] is None


def test_the_classes_of_messages_are_not_looked_up_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib

    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from mulligan.integrations.langgraph.values import ValueCodec

    codec = ValueCodec(JsonPlusSerializer())
    stored = [codec.encode(AIMessage(str(number))) for number in range(3)]
    monkeypatch.setattr(importlib, "import_module", None)
    assert [message.content for message in codec.decode_list(stored)] == ["0", "1", "2"]


def test_a_message_whose_fields_do_not_fit_is_left_to_the_serializer() -> None:
    import ormsgpack
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

    from mulligan.integrations.langgraph.values import ValueCodec

    codec = ValueCodec(JsonPlusSerializer())
    fields = {"content": "later", "tool_calls": "of a later version"}
    body = ormsgpack.packb((AIMessage.__module__, "AIMessage", fields, "model_validate_json"))
    odd = ormsgpack.packb(ormsgpack.Ext(EXT_PYDANTIC_V2, body))
    found = codec.decode_list([codec.encode(AIMessage("first")), odd])
    assert found[1].tool_calls == codec.decode(odd).tool_calls == "of a later version"


def test_a_hook_of_the_program_sees_every_message() -> None:
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from mulligan.integrations.langgraph.values import ValueCodec

    serde = JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: ("seen", code))
    codec = ValueCodec(serde)
    stored = [codec.encode(AIMessage(str(number))) for number in range(3)]
    assert codec.decode_list(stored) == [("seen", 5)] * 3


def put(saver: Any, config: Config, values: dict[str, Any], step: int) -> Config:
    """Save a checkpoint with these values, as if all of them had changed."""
    from langgraph.checkpoint.base import empty_checkpoint

    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, step)
    metadata = {"source": "loop", "step": step, "parents": {}}
    return saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])  # type: ignore[no-any-return]
