"""The connection: revisions, bad input, batches, cancellation. Nothing ends the server."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import mulligan
from mulligan.make_store import make_store
from mulligan.mcp.hooks import HookReply
from mulligan.mcp.messages import Lines, Output
from mulligan.mcp.project import Settings
from mulligan.mcp.versions import PER_REQUEST, VERSION_KEY, WITH_HANDSHAKE
from tests.unit.mcp.conftest import PATIENCE, Connection, Handler

PING = b'{"jsonrpc": "2.0", "id": 99, "method": "ping"}\n'


@pytest.mark.parametrize("version", WITH_HANDSHAKE)
def test_a_known_revision_is_agreed_on(client: Connection, version: str) -> None:
    result = client.ask("initialize", protocolVersion=version, capabilities={})["result"]
    assert result["protocolVersion"] == version
    assert result["serverInfo"] == {"name": "mulligan", "title": "Mulligan", "version": "1.2.3"}
    assert result["capabilities"] == {"tools": {}, "resources": {}}
    assert "plan_restore" in result["instructions"]


def test_an_unknown_revision_gets_the_newest_of_the_handshake(client: Connection) -> None:
    result = client.ask("initialize", protocolVersion="2031-01-01", capabilities={})["result"]
    assert result["protocolVersion"] == WITH_HANDSHAKE[-1]


def test_a_client_without_handshake_discovers_the_server(client: Connection) -> None:
    meta = {VERSION_KEY: PER_REQUEST[0]}
    result = client.ask("server/discover", _meta=meta)["result"]
    assert set(PER_REQUEST) < set(result["supportedVersions"])
    assert result["resultType"] == "complete"
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] == "private"
    called = client.ask("tools/call", name="tasks", arguments={}, _meta=meta)["result"]
    assert called["resultType"] == "complete"


def test_a_request_in_an_unknown_revision_is_refused_with_those_that_are_spoken(
    client: Connection,
) -> None:
    error = client.ask("tools/list", _meta={VERSION_KEY: "2031-01-01"})["error"]
    assert error["code"] == -32022
    assert PER_REQUEST[0] in error["data"]["supported"]
    assert error["data"]["requested"] == "2031-01-01"


BAD = {
    "cut": (b'{"jsonrpc": "2.0", "id": 1, "meth\n', -32700, None),
    "not json": (b"hello\n", -32700, None),
    "not text": (b"\xff\xfe\x00\n", -32700, None),
    "deep": (b"[" * 100_000 + b"\n", -32700, None),
    "a number": (b"7\n", -32600, None),
    "no method": (b'{"jsonrpc": "2.0", "id": 5}\n', -32600, 5),
    "method is a number": (b'{"id": 6, "method": 7}\n', -32600, 6),
    "id is a list": (b'{"id": [], "method": "ping"}\n', -32600, None),
    "id is null": (b'{"id": null, "method": "ping"}\n', -32600, None),
    "id is a truth": (b'{"id": true, "method": "ping"}\n', -32600, None),
    "params are a list": (b'{"id": 7, "method": "ping", "params": []}\n', -32602, 7),
    "unknown method": (b'{"id": 8, "method": "tools/destroy"}\n', -32601, 8),
    "too long": (b'{"id": 9, "method": "' + b"x" * (2 << 20) + b'"}\n', -32600, None),
    "empty batch": (b"[]\n", -32600, None),
    "unknown tool": (b'{"id": 10, "method": "tools/call", "params": {"name": "x"}}\n', -32602, 10),
    "tool is a list": (b'{"id": 11, "method": "tools/call", "params": {"name": []}}\n', -32602, 11),
    "no uri": (b'{"id": 12, "method": "resources/read"}\n', -32602, 12),
    "other uri": (
        b'{"id": 13, "method": "resources/read", "params": {"uri": "file:///etc/passwd"}}\n',
        -32002,
        13,
    ),
    "bad cursor": (
        b'{"id": 14, "method": "resources/list", "params": {"cursor": "x"}}\n',
        -32602,
        14,
    ),
    "no revision": (b'{"id": 15, "method": "initialize"}\n', -32602, 15),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_and_the_server_goes_on(client: Connection, name: str) -> None:
    data, code, id = BAD[name]
    client.write(data)
    reply = client.read()
    assert (reply["error"]["code"], reply["id"]) == (code, id)
    client.write(PING)
    assert client.read() == {"jsonrpc": "2.0", "id": 99, "result": {}}


@pytest.mark.parametrize("id", [0, -1, 2**70, 1.5, "", "é", "x" * 10_000])
def test_an_answer_has_the_id_of_its_request(client: Connection, id: Any) -> None:
    client.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode() + b"\n")
    assert client.read()["id"] == id


def test_half_of_a_surrogate_pair_is_no_reason_to_refuse_a_message(client: Connection) -> None:
    client.write(b'{"id": 1, "method": "cut \\ud83d"}\n')
    reply = client.read()
    assert (reply["id"], reply["error"]["code"]) == (1, -32601)
    assert "cut \ufffd" in reply["error"]["message"]


def test_arguments_of_a_tool_are_an_object(client: Connection) -> None:
    for given in ([], "", 0, False):
        result = client.ask("tools/call", name="tasks", arguments=given)["result"]
        assert result["isError"]
        assert "InvalidArguments" in result["content"][0]["text"]
    assert not client.ask("tools/call", name="tasks", arguments=None)["result"]["isError"]


def test_a_directory_whose_name_is_no_text_is_shown_with_escapes(tmp_path: Path) -> None:
    project = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd \xff"))
    project.mkdir()
    state = tmp_path / "state" / "mulligan"
    make_store(project, {"HOME": str(tmp_path), "XDG_STATE_HOME": str(state.parent)})
    client = Connection(Settings(project, state))
    for _ in range(2):
        assert client.call("status")["directory"].endswith("odd \\udcff")
    client.end()


def test_an_output_that_does_not_wait_gets_all_of_an_answer() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "x" * 1_000_000
    sending = Thread(target=Output(writing).send, args=({"text": text},))
    sending.start()
    with os.fdopen(reading, "rb") as file:
        assert json.loads(file.readline()) == {"text": text}
    sending.join(PATIENCE)
    os.close(writing)


def test_an_input_that_does_not_wait_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    pieces, wait = [b'{"a":', b"1}\n", b"[]"], select.select

    def client_writes_then_wait(*descriptors: Any) -> Any:
        if pieces:
            os.write(writing, pieces.pop(0))
        else:
            os.close(writing)
        return wait(*descriptors)

    monkeypatch.setattr(select, "select", client_writes_then_wait)
    assert list(Lines(reading)) == [b'{"a":1}', b"[]"]
    os.close(reading)


def test_notifications_and_answers_get_no_answer(client: Connection) -> None:
    client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    client.send({"jsonrpc": "2.0", "method": "notifications/nobody-knows", "params": {"a": 1}})
    client.send({"jsonrpc": "2.0", "id": 3, "result": {}})
    client.send(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}}
    )
    client.write(b"\n  \n" + PING)
    assert client.read()["id"] == 99


def test_a_batch_is_answered_as_one(client: Connection) -> None:
    client.send(
        [
            {"id": 1, "method": "ping"},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": "tasks"}},
            7,
        ]
    )
    replies = client.read()
    assert {reply["id"] for reply in replies} == {1, 2, None}


def test_a_line_that_comes_in_pieces_is_one_message(client: Connection) -> None:
    for byte in PING:
        client.write(bytes([byte]))
    assert client.read()["id"] == 99


def test_the_last_line_needs_no_newline(client: Connection) -> None:
    client.write(PING.rstrip())
    assert b'"id":99' in client.end()[0]


def test_a_queued_request_can_be_cancelled(connect: Callable[..., Connection]) -> None:
    started, go_on, calls = Event(), Event(), []

    def hook(given: dict[str, Any]) -> HookReply:
        calls.append(given["n"])
        started.set()
        assert go_on.wait(PATIENCE)
        return HookReply("{}")

    client = connect(hook=Handler(hook))
    for n in (1, 2, 3):
        params = {"name": "hook", "arguments": {"n": n}}
        client.send({"id": n, "method": "tools/call", "params": params})
    assert started.wait(PATIENCE)
    for n in (1, 2):
        client.send({"method": "notifications/cancelled", "params": {"requestId": n}})
    client.write(PING)
    assert client.read()["id"] == 99  # the reader does not wait for the hook
    go_on.set()
    assert client.read()["id"] == 3
    assert calls == [1, 3]  # what ran is completed, what waited is not started


def test_tools_are_answered_while_a_hook_runs(connect: Callable[..., Connection]) -> None:
    go_on = Event()

    def hook(given: dict[str, Any]) -> HookReply:
        assert go_on.wait(PATIENCE)
        return HookReply('{"continue": true}', "main")

    client = connect(hook=Handler(hook))
    client.send({"id": "h", "method": "tools/call", "params": {"name": "hook", "arguments": {}}})
    assert client.call("tasks")["tasks"] == []
    go_on.set()
    reply = client.read()
    assert reply["id"] == "h"
    assert reply["result"]["content"][0]["text"] == '{"continue": true}'


def test_the_hook_tool_is_not_listed_and_not_there_without_hooks(
    client: Connection, connect: Callable[..., Connection]
) -> None:
    assert client.ask("tools/call", name="hook", arguments={})["error"]["code"] == -32602
    with_hooks = connect(hook=Handler(lambda given: HookReply("{}")))
    names = [tool["name"] for tool in with_hooks.ask("tools/list")["result"]["tools"]]
    assert "hook" not in names


def test_requests_are_completed_when_the_input_ends(client: Connection) -> None:
    params = {"name": "checkpoint", "arguments": {"label": "last"}}
    client.send({"id": 1, "method": "tools/call", "params": params})
    (line,) = client.end()
    assert b'"label":"last"' in line


def test_a_client_that_stopped_reading_gets_its_work_done(
    client: Connection, project: Path
) -> None:
    client.stop_reading()
    params = {"name": "checkpoint", "arguments": {"label": "unheard"}}
    client.send({"id": 1, "method": "tools/call", "params": params})
    client.send({"id": 2, "method": "ping"})
    client.end()
    with mulligan.open(project) as store:
        assert store.session("main").checkpoints.at("unheard").label == "unheard"
