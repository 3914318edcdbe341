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
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions import Session as AdkSession
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import FunctionTool
from google.genai import types

from mulligan.integrations.google_adk import MulliganPlugin, MulliganSessionService

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


def test_bytes_in_the_state_are_text_or_base64(service: MulliganSessionService) -> None:
    async def run() -> dict[str, Any]:
        made = await service.create_session(**WHO, state={"a": b"\xff\x00", "b": b"text"})
        await service.append_event(made, event(1, {"c": [b"\xfe"]}))
        found = await service.get_session(**WHO)
        assert found is not None
        return dict(found.state)

    assert asyncio.run(run()) == {"a": "_wA=", "b": "text", "c": ["_g=="]}


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


class Asks(BaseLlm):
    """Calls a tool once in every turn, always under the same id, and says what it returned."""

    call_id: str = "call_1"

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        parts = llm_request.contents[-1].parts
        found = [part.function_response for part in parts if part.function_response]
        if found:
            part = types.Part(text=str(found[0].response))
        else:
            call = types.FunctionCall(id=self.call_id, name="look", args={})
            part = types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Looking:
    """Sessions of an agent whose calls of one tool are recorded."""

    def __init__(self, service: MulliganSessionService, tool: Any, **model: Any) -> None:
        self._service = service
        app = App(
            name="app",
            root_agent=LlmAgent(name="a", model=Asks(model="asks", **model), tools=[tool]),
            plugins=[MulliganPlugin(service)],
            resumability_config=ResumabilityConfig(is_resumable=True),
        )
        self._runner = Runner(app=app, session_service=service)

    async def events(self, session: str, part: types.Part, **options: Any) -> list[Event]:
        who = {"app_name": "app", "user_id": "u", "session_id": session}
        if await self._service.get_session(**who) is None:
            await self._service.create_session(**who)
        message = types.Content(role="user", parts=[part])
        given = {"user_id": "u", "session_id": session, "new_message": message, **options}
        return [event async for event in self._runner.run_async(**given)]

    async def said(self, session: str, part: types.Part, **options: Any) -> str:
        events = await self.events(session, part, **options)
        [text] = [p.text for e in events if e.content for p in e.content.parts or [] if p.text]
        return str(text)


GO = types.Part(text="go")


@pytest.mark.parametrize("call_id", ["call_1", "call_1" * 200])
def test_an_id_that_a_model_gives_again_is_another_call(
    service: MulliganSessionService, call_id: str
) -> None:
    numbers = iter(range(1, 9))

    async def look() -> dict[str, Any]:
        """Look."""
        return {"number": next(numbers)}

    async def run() -> None:
        looking = Looking(service, look, call_id=call_id)
        assert await looking.said("s", GO) == "{'number': 1}"
        assert await looking.said("s", GO) == "{'number': 2}"

    asyncio.run(run())


def test_calls_of_two_sessions_with_one_id_are_told_apart(service: MulliganSessionService) -> None:
    async def run() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        numbers = iter((1, 2))

        async def look() -> dict[str, Any]:
            """Look: the call of the first session returns while the second one is made."""
            number = next(numbers)
            if number == 1:
                first.set()
                await second.wait()
            else:
                second.set()
                await asyncio.gather(*others)
            return {"number": number}

        looking = Looking(service, look)
        others = [asyncio.create_task(looking.said("s", GO))]
        await first.wait()
        await looking.said("t", GO)

    asyncio.run(run())
    for number, name in enumerate("st", 1):
        timeline = service.session("app", "u", name)
        assert timeline is not None
        [call] = timeline.tools.list()
        assert (call.status, call.result) == ("returned", {"number": number})


@pytest.mark.parametrize("same_invocation", [False, True])
def test_a_tool_is_called_once_the_user_has_confirmed_it(
    service: MulliganSessionService, same_invocation: bool
) -> None:
    async def look() -> dict[str, Any]:
        """Look."""
        return {"seen": True}

    async def run() -> str:
        looking = Looking(service, FunctionTool(look, require_confirmation=True))
        events = await looking.events("s", GO)
        name = "adk_request_confirmation"
        [asked] = [c for event in events for c in event.get_function_calls() if c.name == name]
        answer = types.FunctionResponse(id=asked.id, name=name, response={"confirmed": True})
        options = {"invocation_id": events[-1].invocation_id} if same_invocation else {}
        return await looking.said("s", types.Part(function_response=answer), **options)

    assert asyncio.run(run()) == "{'seen': True}"
    timeline = service.session("app", "u", "s")
    assert timeline is not None
    assert [call.status for call in timeline.tools.list()] == ["failed", "returned"]
