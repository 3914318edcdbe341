"""Sessions of the Claude Agent SDK: stored once, by several processes, and resumed after a kill."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.anthropic_server import serving, text, tool
from tests.frameworks.killed import Program
from tests.frameworks.needed import needed

needed("claude_agent_sdk")

from claude_agent_sdk import ClaudeAgentOptions, fork_session_via_store, project_key_for_directory

from mulligan.integrations.claude_agent_sdk import CONTINUE, MulliganSessionStore
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store

KEY: Any = {"project_key": "p", "session_id": "s"}


def entry(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": f"u{number}", "n": number, **fields}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MulliganSessionStore]:
    opened = MulliganSessionStore(tmp_path / "store")
    yield opened
    opened.close()


def test_an_entry_that_is_sent_again_is_stored_once(store: MulliganSessionStore) -> None:
    async def run() -> Any:
        await store.append(KEY, [entry(1), entry(2)])
        await store.append(KEY, [entry(2), entry(3), entry(3)])
        await store.append(KEY, [{"type": "mode"}, {"type": "mode"}])  # no uuid: each counts
        return await store.load(KEY)

    loaded = asyncio.run(run())
    assert loaded == [entry(1), entry(2), entry(3), {"type": "mode"}, {"type": "mode"}]


def test_after_a_restore_entries_of_the_abandoned_future_are_new_again(
    store: MulliganSessionStore,
) -> None:
    async def run() -> Any:
        await store.append(KEY, [entry(1)])
        session = store.session("p", "s")
        assert session is not None
        point = session.checkpoint()
        await store.append(KEY, [entry(2)])
        session.restore(point)
        await store.append(KEY, [entry(1), entry(2), entry(3)])
        return await store.load(KEY)

    assert asyncio.run(run()) == [entry(1), entry(2), entry(3)]


def test_a_prompt_with_half_of_a_character_is_summarised(store: MulliganSessionStore) -> None:
    async def run() -> Any:
        await store.append(KEY, [entry(1, message={"role": "user", "content": "half \ud83d"})])
        await store.append(KEY, [entry(2, customTitle="title \ud83d")])
        [summary] = await store.list_session_summaries("p")
        return summary["data"], len(await store.load(KEY) or [])

    data, count = asyncio.run(run())
    assert (data["first_prompt"], data["custom_title"], count) == ("half \ud83d", "title \ud83d", 2)


@pytest.mark.parametrize(
    "odd", ["\ud800 half a pair", 2**80, {"mulligan:json": "1"}, 1.5, None, {"": [[]]}]
)
def test_every_json_value_comes_back(store: MulliganSessionStore, odd: Any) -> None:
    async def run() -> Any:
        await store.append(KEY, [entry(1, odd=odd)])
        return await store.load(KEY)

    assert asyncio.run(run()) == [entry(1, odd=odd)]


def test_the_session_that_was_written_last_is_known_within_a_millisecond() -> None:
    store = MulliganSessionStore(open_store("memory:", clock=FakeClock(tick=1e-6)))
    ids = ["c", "a", "d", "b"]

    async def run() -> tuple[Any, Any]:
        for id in [*reversed(ids), *ids]:
            key: Any = {"project_key": "p", "session_id": id}
            await store.append(key, [{"type": "user"}])
        return await store.list_sessions("p"), await store.list_session_summaries("p")

    listed, summaries = asyncio.run(run())
    times = {found["session_id"]: found["mtime"] for found in listed}
    assert sorted(ids, key=times.__getitem__) == ids
    assert len({*times.values()}) == len(ids)
    assert {found["session_id"]: found["mtime"] for found in summaries} == times


def append_many(path: str, writer: int) -> None:
    """Append one by one, and every entry twice, in a process of its own."""
    store = MulliganSessionStore(path)

    async def run() -> None:
        for number in range(25):
            sent = [entry(1000 * writer + number)]
            await store.append(KEY, sent)
            await store.append(KEY, sent)

    asyncio.run(run())
    store.close()


def test_two_processes_append_to_one_session(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with ProcessPoolExecutor(2) as processes:
        for done in [processes.submit(append_many, path, writer) for writer in (1, 2)]:
            done.result()
    store = MulliganSessionStore(path)
    loaded = asyncio.run(store.load(KEY))
    listed = asyncio.run(store.list_session_summaries("p"))
    store.close()
    assert loaded is not None
    assert [e["n"] for e in loaded if e["n"] < 2000] == [1000 + n for n in range(25)]
    assert [e["n"] for e in loaded if e["n"] >= 2000] == [2000 + n for n in range(25)]
    assert [summary["session_id"] for summary in listed] == ["s"]


def test_the_sdk_forks_a_session_in_the_store(store: MulliganSessionStore, tmp_path: Path) -> None:
    project = project_key_for_directory(str(tmp_path))
    id = "11111111-1111-4111-8111-111111111111"
    first, second = (f"{n}1111111-1111-4111-8111-111111111111" for n in (2, 3))
    said: list[Any] = [
        {"type": "user", "uuid": first, "parentUuid": None, "sessionId": id,
         "message": {"role": "user", "content": "hello"}},
        {"type": "assistant", "uuid": second, "parentUuid": first, "sessionId": id,
         "message": {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}},
    ]  # fmt: skip

    async def run() -> tuple[Any, Any]:
        await store.append({"project_key": project, "session_id": id}, said)
        fork = await fork_session_via_store(store, id, directory=str(tmp_path))
        found = await store.load({"project_key": project, "session_id": fork.session_id})
        return fork.session_id, found

    fork, found = asyncio.run(run())
    assert fork != id
    kept = [e["message"]["content"] for e in found if "message" in e]
    assert kept == ["hello", [{"type": "text", "text": "hi"}]]


@pytest.mark.parametrize(
    ("last", "resumed"),
    [
        ({"type": "user", "message": {"content": [{"type": "tool_result"}]}}, True),
        ({"type": "assistant", "message": {"stop_reason": "tool_use"}}, True),
        ({"type": "assistant", "message": {"stop_reason": "end_turn"}}, False),
    ],
)
def test_only_a_session_that_did_not_end_is_resumed(
    store: MulliganSessionStore, tmp_path: Path, last: dict[str, Any], resumed: bool
) -> None:
    options = ClaudeAgentOptions(cwd=tmp_path)
    project = project_key_for_directory(tmp_path)

    async def run() -> tuple[str, ClaudeAgentOptions]:
        asked = {"type": "user", "uuid": "1", "message": {"content": "do it"}}
        id = "11111111-1111-4111-8111-111111111111"
        key: Any = {"project_key": project, "session_id": id}
        await store.append(key, [asked, {"uuid": "2", **last}])
        assert (await store.resume("something else", options))[0] == "something else"
        return await store.resume("do it", options)

    prompt, found = asyncio.run(run())
    assert (prompt, found.resume is not None) == (CONTINUE if resumed else "do it", resumed)
    assert found.session_store is store


def test_a_killed_program_goes_on_without_repeating_what_it_did(tmp_path: Path) -> None:
    """With the real program of the SDK, against a server on loopback."""
    work, home, started = tmp_path / "work", tmp_path / "home", tmp_path / "work" / "started"
    work.mkdir()
    home.mkdir()
    wait = "touch started; while [ ! -e go ]; do sleep 0.05; done"
    turns = [
        [tool("Bash", command="echo one >> log.txt", description="one")],
        [tool("Bash", command=wait, description="wait")],
        [tool("Bash", command="echo two >> log.txt", description="two")],
        [text("all done")],
    ]
    file = Path(__file__).with_name("program.py")
    with serving(turns) as (url, requests):
        env = environment(home, url)
        Program(file, tmp_path / "store", work, env=env).kill_when(started)
        (work / "go").touch()  # the shell survives the agent, and must end
        printed = Program(file, tmp_path / "store", work, env=env).output()
    assert printed.split(maxsplit=1)[1].strip() == "all done"
    assert (work / "log.txt").read_text() == "one\ntwo\n"
    resumed = str(requests[-1]["messages"])
    assert resumed.count("Write one, wait, write two.") == 1
    assert CONTINUE in resumed


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    guide = Path(__file__).parents[3] / "docs" / "guide-claude-agent-sdk.md"
    [code] = re.findall(r"```python program\n(.*?)```", guide.read_text(), re.S)
    (tmp_path / "work").mkdir()
    (tmp_path / "program.py").write_text(code)
    with serving([[tool("Bash", command="echo fixed > out.txt", description="fix")]]) as (url, _):
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"],
            cwd=tmp_path / "work",
            env=environment(tmp_path, url),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "result='done'" in done.stdout
    assert (tmp_path / "work" / "out.txt").read_text() == "fixed\n"


def environment(home: Path, url: str) -> dict[str, str]:
    """Return the environment of an agent that knows nothing but the server of the test."""
    return {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "fake",
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
