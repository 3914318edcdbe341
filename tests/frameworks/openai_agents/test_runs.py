"""Runs of the OpenAI Agents SDK that were killed, or wait for approval, go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.killed import Program
from tests.frameworks.needed import needed

needed("agents")

from agents import Agent, ModelBehaviorError, Runner, RunState, function_tool, handoff
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

from mulligan.integrations.openai_agents import MulliganSession

FILE = Path(__file__).with_name("program.py")


def interrupted(directory: Path, how: str) -> tuple[str, list[str]]:
    """Kill the program in its tool, start it again, and return what it printed and did."""
    Program(FILE, directory, how).kill_when(directory / "started")
    (directory / "go").touch()
    printed = Program(FILE, directory, how).output().strip()
    return printed, (directory / "log.txt").read_text().splitlines()


@pytest.mark.parametrize("how", ["durable", "durable stream"])
def test_a_killed_run_repeats_no_answer_and_no_tool_that_returned(tmp_path: Path, how: str) -> None:
    printed, log = interrupted(tmp_path, how)
    assert printed == "done"
    assert [line for line in log if line.startswith("model")] == [
        "model 0 of 1 questions",
        "model 1 of 1 questions",
        "model 3 of 1 questions",
    ]
    assert [line for line in log if line.startswith("charge")] == ["charge 1", "charge 2"]
    assert log.count("wait") == 2  # the process died in it: it may not have happened


def test_a_durable_agent_that_is_a_tool_repeats_nothing_either(tmp_path: Path) -> None:
    printed, log = interrupted(tmp_path, "durable nested")
    assert printed == "paid"
    assert [line for line in log if line.startswith("boss")] == ["boss 0", "boss 1"]
    models = [line for line in log if line.startswith("model")]
    assert models == [f"model {n} of 1 questions" for n in (0, 1, 3)]
    assert [line for line in log if line.startswith("charge")] == ["charge 1", "charge 2"]
    assert log.count("wait") == 2


def test_a_tool_in_doubt_of_an_agent_that_is_a_tool_is_reported(tmp_path: Path) -> None:
    printed, log = interrupted(tmp_path, "durable nested once")
    assert "'wait' was called, and the process died before it returned" in printed
    assert log.count("wait") == 1


def test_a_tool_in_doubt_is_not_called_again_if_that_is_asked_for(tmp_path: Path) -> None:
    printed, log = interrupted(tmp_path, "durable once")
    assert "'wait' was called, and the process died before it returned" in printed
    assert log.count("wait") == 1


def test_without_recording_turns_that_ended_are_not_repeated(tmp_path: Path) -> None:
    """The question is not asked twice, and the first turn's tool is not called again."""
    printed, log = interrupted(tmp_path, "plain")
    assert printed == "done"
    assert log.count("charge 1") == 1
    assert all(line.endswith("of 1 questions") for line in log if line.startswith("model"))


def test_the_input_is_sent_again_only_while_its_run_has_not_ended(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        session = MulliganSession("s", tmp_path)
        asked = {"role": "user", "content": "why?"}
        found = [await session.resume_input("why?")]
        await session.add_items([asked])
        found += [await session.resume_input("why?"), await session.resume_input("how?")]
        await session.add_items([{"role": "assistant", "content": "because"}])
        found += [await session.resume_input("why?"), await session.resume_input([asked])]
        session.close()
        return found

    asked = {"role": "user", "content": "why?"}
    assert asyncio.run(run()) == ["why?", [], "how?", "why?", [asked]]


def approving_agent(done: list[str], *turns: Any) -> Agent[Any]:
    @function_tool(needs_approval=True)
    def delete(name: str) -> str:
        done.append(name)
        return f"deleted {name}"

    return Agent(name="cleaner", model=ScriptedModel(list(turns)), tools=[delete])


def test_a_run_that_waits_for_approval_goes_on_in_another_process(tmp_path: Path) -> None:
    done: list[str] = []

    async def ask() -> None:
        session = MulliganSession("s", tmp_path)
        agent = approving_agent(done, [function_call("delete", {"name": "x"}, call_id="c1")])
        result = await Runner.run(agent, await session.resume_input("go", agent), session=session)
        assert len(result.interruptions) == 1
        await session.save_run_state(result.to_state())
        session.close()

    async def answer() -> str:
        session = MulliganSession("s", tmp_path)
        agent = approving_agent(done, [assistant_message("gone")])
        state = await session.resume_input("go", agent)
        assert isinstance(state, RunState)
        for question in state.get_interruptions():
            state.approve(question)
        result = await Runner.run(agent, state, session=session)
        assert await session.load_run_state(agent) is None
        assert await session.resume_input("go", agent) == "go"
        session.close()
        return str(result.final_output)

    asyncio.run(ask())
    assert done == []
    assert asyncio.run(answer()) == "gone"
    assert done == ["x"]


def test_agents_that_hand_off_in_a_circle_are_durable(tmp_path: Path) -> None:
    session = MulliganSession("s", tmp_path)
    first = Agent(name="first", model=ScriptedModel([]))
    second = Agent(name="second", model=ScriptedModel([]), handoffs=[first])
    first.handoffs = [second]
    made = session.durable(first)
    assert made.handoffs[0].handoffs[0] is made
    assert first.handoffs == [second]  # the given ones are as they were
    session.close()


def test_agents_behind_handoff_objects_are_durable(tmp_path: Path) -> None:
    """Also in a circle; a handoff keeps what it was made with."""
    session = MulliganSession("s", tmp_path)
    first = Agent(name="first", model=ScriptedModel([]))
    second = Agent(name="second", model=ScriptedModel([]), handoffs=[handoff(first)])
    given = handoff(second, tool_name_override="go")
    first.handoffs = [given]

    async def run() -> tuple[Any, Any]:
        made = session.durable(first)
        assert made.handoffs[0].tool_name == "go"
        after = await made.handoffs[0].on_invoke_handoff(None, "")
        assert after.name == "second"
        assert after is not second
        return made, await after.handoffs[0].on_invoke_handoff(None, "")

    made, again = asyncio.run(run())
    assert again is made
    assert first.handoffs == [given]  # the given ones are as they were
    session.close()


def test_ids_of_calls_that_come_again_are_other_calls(tmp_path: Path) -> None:
    """Servers exist that number the calls of each conversation from zero."""
    done: list[int] = []

    @function_tool
    def count(number: int) -> str:
        done.append(number)
        return str(number)

    async def run() -> None:
        session = MulliganSession("s", tmp_path)
        call = [function_call("count", {"number": 7}, call_id="call_0")]
        turns: list[Any] = [call, [assistant_message("a")], call, [assistant_message("b")]]
        agent = session.durable(Agent(name="n", model=ScriptedModel(turns), tools=[count]))
        await Runner.run(agent, "one", session=session)
        await session.clear_session()
        await Runner.run(agent, "one", session=session)
        session.close()

    asyncio.run(run())
    assert done == [7, 7]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("bad", ["no such tool", "one of two tools", "no such value"])
def test_an_answer_that_no_run_can_use_is_not_the_answer_to_the_next(
    tmp_path: Path, bad: str, is_streamed: bool
) -> None:
    charge, none = function_call("charge", {}, call_id="1"), function_call("none", {}, call_id="2")
    answers = {
        "no such tool": [none],
        "one of two tools": [charge, none],
        "no such value": [assistant_message("much")],
    }

    @function_tool(name_override="charge")
    def charged() -> str:
        return "charged"

    class Paid(BaseModel):
        amount: int

    async def run(session: MulliganSession, answer: Any) -> Any:
        model = ScriptedModel([answer])
        given = Agent(name="payer", model=model, output_type=Paid, tools=[charged])
        agent = session.durable(given)
        asked = await session.resume_input("Pay.")
        if not is_streamed:
            return (await Runner.run(agent, asked, session=session)).final_output
        result = Runner.run_streamed(agent, asked, session=session)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def main() -> Any:
        session = MulliganSession("s", tmp_path)
        with pytest.raises(ModelBehaviorError):
            await run(session, answers[bad])
        found = await run(session, [assistant_message('{"amount": 3}')])
        session.close()
        return found

    assert asyncio.run(main()) == Paid(amount=3)
