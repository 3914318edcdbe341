"""The session service of ADK behaves as ADK's own, and interrupted invocations go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frameworks.killed import Program
from tests.frameworks.needed import needed

needed("google.adk")

from google.adk.agents import LlmAgent
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions import Session as AdkSession
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from mulligan.integrations.google_adk import MulliganSessionService

WHO = {"app_name": "app", "user_id": "u", "session_id": "s"}
FILE = Path(__file__).with_name("program.py")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MulliganSessionService]:
    made = MulliganSessionService(tmp_path)
    yield made
    asyncio.run(made.close())


def event(number: int, delta: dict[str, Any] | None = None, **fields: Any) -> Event:
    return Event(
        id=f"e{number}",
        author="agent",
        invocation_id="i",
        timestamp=1000.0 + number,
        content=types.Content(role="model", parts=[types.Part(text=f"text {number}")]),
        actions=EventActions(state_delta=delta or {}),
        **fields,
    )


KEYS = st.sampled_from(["a", "b", "app:a", "user:a", "temp:a"])
STATES = st.dictionaries(
    KEYS, st.integers() | st.none() | st.lists(st.text(max_size=3)), max_size=3
)
USERS, IDS = st.sampled_from(["u", "v"]), st.sampled_from(["s", "t", " s "])
CONFIGS = st.sampled_from([
    None, GetSessionConfig(num_recent_events=0), GetSessionConfig(num_recent_events=2),
    GetSessionConfig(after_timestamp=1003.0),
    GetSessionConfig(num_recent_events=3, after_timestamp=1002.0),
])  # fmt: skip
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), USERS, IDS, STATES),
    st.tuples(st.just("append"), USERS, IDS, STATES),
    st.tuples(st.just("append"), USERS, IDS, STATES),
    st.tuples(st.just("again"), USERS, IDS, st.none()),
    st.tuples(st.just("partial"), USERS, IDS, STATES),
    st.tuples(st.just("get"), USERS, IDS, CONFIGS),
    st.tuples(st.just("list"), USERS | st.none(), IDS, st.none()),
    st.tuples(st.just("delete"), USERS, IDS, st.none()),
    st.tuples(st.just("user state"), USERS, IDS, st.none()),
)


def shown(session: Any) -> Any:
    if session is None:
        return None
    return session.model_dump(exclude={"last_update_time"})


async def apply(service: Any, number: int, operation: tuple[str, Any, str, Any]) -> Any:
    """Return what an operation returns, or the kind of error that it raises."""
    what, user, id, argument = operation
    who = {"app_name": "app", "user_id": user, "session_id": id}
    try:
        if what == "create":
            return shown(await service.create_session(**who, state=argument))
        if what in ("append", "again", "partial"):
            session = await service.get_session(**who)
            if session is None:
                return None
            number = len(session.events) - 1 if what == "again" else number
            made = event(number, argument, partial=what == "partial" or None)
            if what == "again" and session.events:
                made = session.events[-1].model_copy(deep=True)
            await service.append_event(session, made)
            return shown(session) if what != "again" else None
        if what == "get":
            return shown(await service.get_session(**who, config=argument))
        if what == "list":
            found = await service.list_sessions(app_name="app", user_id=user)
            return sorted([shown(s) for s in found.sessions], key=lambda s: (s["user_id"], s["id"]))
        if what == "delete":
            return await service.delete_session(**who)
        return await service.get_user_state(app_name="app", user_id=user)
    except (AlreadyExistsError, SessionNotFoundError) as error:
        return type(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATIONS, max_size=15))
def test_it_does_what_adks_own_service_does(operations: list[Any]) -> None:
    async def run() -> None:
        ours, theirs = MulliganSessionService("memory:"), InMemorySessionService()
        first = ("create", "u", "s", {"a": 0, "user:a": 1})
        for number, operation in enumerate([first, *operations], 1):
            expected = await apply(theirs, number, operation)
            assert await apply(ours, number, operation) == expected, operation

    asyncio.run(run())


def test_temporary_state_lives_as_long_as_the_invocation(service: MulliganSessionService) -> None:
    async def run() -> None:
        session = await service.create_session(**WHO)
        await service.append_event(session, event(1, {"temp:x": 1, "y": 2}))
        assert session.state == {"temp:x": 1, "y": 2}
        stored = await service.get_session(**WHO)
        assert stored is not None
        assert stored.state == {"y": 2}
        assert stored.events[0].actions.state_delta == {"y": 2}

    asyncio.run(run())


def test_a_session_that_is_out_of_date_is_refused(service: MulliganSessionService) -> None:
    async def run() -> None:
        await service.create_session(**WHO)
        here = await service.get_session(**WHO)
        there = await service.get_session(**WHO)
        assert here is not None
        assert there is not None
        here.last_update_time = there.last_update_time = 0.0
        stored = service.session("app", "u", "s")
        assert stored is not None
        stored.state.set("adk/updated", 0.0)
        await service.append_event(here, event(1))
        with pytest.raises(StaleSessionError):
            await service.append_event(there, event(2))
        assert len(there.events) == 0

    asyncio.run(run())


def test_whether_a_session_is_out_of_date_is_not_judged_by_times(
    service: MulliganSessionService,
) -> None:
    """Events bring their own times, and clocks of two machines differ."""

    async def run() -> None:
        await service.create_session(**WHO)
        here, there = await service.get_session(**WHO), await service.get_session(**WHO)
        assert here is not None
        assert there is not None
        await service.append_event(here, event(1))  # of 1970: long before the session was made
        with pytest.raises(StaleSessionError):
            await service.append_event(there, event(2))
        here.last_update_time -= 0.0001  # rounded on its way through a program
        await service.append_event(here, event(3))
        found = await service.get_session(**WHO)
        assert found is not None
        assert [e.id for e in found.events] == ["e1", "e3"]

    asyncio.run(run())


def test_an_object_that_the_program_made_itself_is_judged_by_its_last_event(
    service: MulliganSessionService,
) -> None:
    async def run() -> None:
        session = await service.create_session(**WHO)
        await service.append_event(session, event(1))
        copied = AdkSession.model_validate(session.model_dump())
        copied.last_update_time -= 1
        await service.append_event(copied, event(2))
        behind = AdkSession.model_validate({**copied.model_dump(), "events": [event(1)]})
        behind.last_update_time -= 1
        with pytest.raises(StaleSessionError):
            await service.append_event(behind, event(3))

    asyncio.run(run())


def test_of_two_writers_at_the_same_moment_one_is_refused(service: MulliganSessionService) -> None:
    async def run() -> None:
        await service.create_session(**WHO)
        for number in range(4):
            session = await service.get_session(**WHO)
            assert session is not None
            copies = [session.model_copy(deep=True) for _ in range(2)]
            made = [
                service.append_event(copy, event(2 * number + n)) for n, copy in enumerate(copies)
            ]
            ended = await asyncio.gather(*made, return_exceptions=True)
            assert sorted(isinstance(e, StaleSessionError) for e in ended) == [False, True]
        found = await service.get_session(**WHO)
        assert found is not None
        assert len(found.events) == 4

    asyncio.run(run())


def test_scoped_state_that_a_dead_process_left_to_do_is_done(
    service: MulliganSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the event and the state of the app, which are two transactions."""

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    async def run() -> None:
        session = await service.create_session(**WHO)
        later = await service.create_session(app_name="app", user_id="u", session_id="t")
        delta = {"app:x": 1, "app:w": 1, "user:y": 2, "z": 3}
        with monkeypatch.context() as patch:
            patch.setattr("mulligan.integrations.google_adk._Scope.apply", die)
            with pytest.raises(Killed):
                service._append(session, event(1, delta))
        await service.append_event(later, event(2, {"app:w": 9}))
        found = await service.get_session(**WHO)
        assert found is not None
        assert found.state == {"app:x": 1, "app:w": 9, "user:y": 2, "z": 3}

    asyncio.run(run())


def append_many(path: str, writer: int) -> int:
    """Append as two runners do: read the session again when it is out of date."""
    service, stale = MulliganSessionService(path), 0

    async def run() -> int:
        nonlocal stale
        for number in range(20):
            while True:
                session = await service.get_session(**WHO)
                assert session is not None
                moment = session.last_update_time + 1
                made = event(1000 * writer + number, {f"n{writer}": number, "app:total": number})
                try:
                    made.timestamp = moment
                    await service.append_event(session, made)
                    break
                except StaleSessionError:
                    stale += 1
        return stale

    done = asyncio.run(run())
    asyncio.run(service.close())
    return done


def test_two_processes_append_to_one_session(tmp_path: Path) -> None:
    service = MulliganSessionService(tmp_path)
    asyncio.run(service.create_session(**WHO))
    with ProcessPoolExecutor(2) as processes:
        for done in [processes.submit(append_many, str(tmp_path), writer) for writer in (1, 2)]:
            done.result()
    session = asyncio.run(service.get_session(**WHO))
    asyncio.run(service.close())
    assert session is not None
    ids = [int(e.id[1:]) for e in session.events]
    assert [id for id in ids if id < 2000] == [1000 + n for n in range(20)]
    assert [id for id in ids if id >= 2000] == [2000 + n for n in range(20)]
    assert session.state == {"n1": 19, "n2": 19, "app:total": 19}


def interrupted(directory: Path, how: str) -> tuple[str, list[str]]:
    """Kill the program in its tool, start it again, and return what it printed and did."""
    Program(FILE, directory, how).kill_when(directory / "started")
    (directory / "go").touch()
    printed = Program(FILE, directory, how).output().strip()
    return printed, (directory / "log.txt").read_text().splitlines()


@pytest.mark.parametrize("how", ["durable", "plain"])
def test_a_killed_invocation_goes_on(tmp_path: Path, how: str) -> None:
    printed, log = interrupted(tmp_path, how)
    assert printed == "done"
    models = [line for line in log if line.startswith("model")]
    assert models == [f"model {n} of 1 questions" for n in (0, 1, 3)]
    assert log.count("charge 1") == 1
    # A parallel tool that returned is not called again where calls are recorded.
    assert log.count("charge 2") == (1 if how == "durable" else 2)
    assert log.count("wait") == 2


class Echo(BaseLlm):
    """Says how many turns of the user it sees."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        seen = [c.parts[0].text for c in llm_request.contents if c.role == "user"]
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=str(seen))]))


def test_a_session_is_rewound_by_the_runner(service: MulliganSessionService) -> None:
    async def run() -> list[str]:
        await service.create_session(**WHO)
        agent = LlmAgent(name="echo", model=Echo(model="echo"), output_key="said")
        runner = Runner(app_name="app", agent=agent, session_service=service)

        async def ask(text: str) -> tuple[str, str]:
            message = types.Content(role="user", parts=[types.Part(text=text)])
            async for e in runner.run_async(user_id="u", session_id="s", new_message=message):
                last = e
            return last.content.parts[0].text, last.invocation_id

        answers = [(await ask("one"))[0]]
        _, second = await ask("two")
        await runner.rewind_async(user_id="u", session_id="s", rewind_before_invocation_id=second)
        rewound = await service.get_session(**WHO)
        assert rewound is not None
        assert rewound.state["said"] == "['one']"
        answers.append((await ask("three"))[0])
        return answers

    assert asyncio.run(run()) == ["['one']", "['one', 'three']"]


def test_the_message_is_sent_again_only_if_its_invocation_ended(
    service: MulliganSessionService,
) -> None:
    async def run() -> list[Any]:
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        other = types.Content(role="user", parts=[types.Part(text="other")])
        found = [await service.resume_input("app", "u", "s", message)]
        session = await service.create_session(**WHO)
        session.last_update_time = 1e12
        asked = Event(author="user", invocation_id="i1", content=message)
        await service.append_event(session, asked)
        found.append(await service.resume_input("app", "u", "s", message))
        found.append(await service.resume_input("app", "u", "s", other))
        session.last_update_time = 1e12
        answer = types.Content(role="model", parts=[types.Part(text="hi")])
        await service.append_event(session, Event(author="a", invocation_id="i1", content=answer))
        found.append(await service.resume_input("app", "u", "s", message))
        return [[*given] for given in found]

    new = ["new_message"]
    assert asyncio.run(run()) == [new, ["invocation_id"], new, new]
