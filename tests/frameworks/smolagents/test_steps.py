"""Steps of smolagents are stored as they end, and an interrupted run goes on after the last one."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.frameworks.killed import Program
from tests.frameworks.needed import needed

needed("smolagents")

from smolagents import (
    ActionStep,
    ChatMessage,
    CodeAgent,
    MemoryStep,
    Model,
    TaskStep,
    Tool,
    ToolCallingAgent,
    tool,
)
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import LogLevel, Timing
from smolagents.utils import AgentExecutionError, AgentToolExecutionError

from mulligan.errors import Conflict
from mulligan.integrations.smolagents import MulliganSteps

FILE = Path(__file__).with_name("program.py")


@pytest.mark.parametrize(
    ("how", "printed"),
    [
        ("tools", ["done", "['task', 1, 2, 3] ()"]),
        ("code", ["['charged 1', 'waited']", "['task', 1, 2, 3] ('rate',)"]),
    ],
)
def test_a_killed_run_goes_on_after_its_last_step(
    tmp_path: Path, how: str, printed: list[str]
) -> None:
    """A code agent has its variables again, except those that cannot be stored."""
    Program(FILE, tmp_path, how).kill_when(tmp_path / "started")
    (tmp_path / "go").touch()
    assert Program(FILE, tmp_path, how).output().splitlines() == printed
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert log == [
        "model 0 of 1 tasks",
        "charge 1",
        "model 1 of 1 tasks",
        "wait",
        "model 1 of 1 tasks",  # its step had not ended
        "wait",
        "model 2 of 1 tasks",
    ]


class Script(Model):
    def __init__(self, *answers: Any) -> None:
        super().__init__(model_id="script")
        self.answers, self.seen = list(answers), list[int]()

    def generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        self.seen.append(len(messages))
        name, arguments = self.answers.pop(0)
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(function=function, id="call", type="function")
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call], raw=object())


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no")


def agent(*answers: Any) -> ToolCallingAgent:
    return ToolCallingAgent(tools=[fail], model=Script(*answers), verbosity_level=LogLevel.OFF)


def final(answer: str) -> tuple[str, dict[str, str]]:
    return "final_answer", {"answer": answer}


def test_a_finished_task_is_begun_again(tmp_path: Path) -> None:
    steps = MulliganSteps("s", tmp_path)
    one = agent(final("a"), final("b"), final("c"))
    assert [steps.run(one, "task"), steps.run(one, "task")] == ["a", "b"]
    assert [type(step) for step in steps.steps()] == [TaskStep, ActionStep]
    assert steps.run(one, "other", reset=False) == "c"
    kept = steps.steps()
    assert [step.task for step in kept if isinstance(step, TaskStep)] == ["task", "other"]
    steps.close()


@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.parametrize("how", ["plain", "stream", "full"])
def test_a_run_that_died_after_its_last_step_gives_its_answer(
    tmp_path: Path, how: str, most: int
) -> None:
    """Of a run that reached its most steps, too. The model is not asked for another step."""
    steps = MulliganSteps("s", tmp_path)
    answers = [("fail", {}), final("b")] if most == 1 else [final("a")]
    for step in steps.run(agent(*answers), "task", stream=True, max_steps=most):
        if isinstance(step, ActionStep) and len(steps.steps()) == len(answers) + 1:
            break  # here it dies
    steps.close()
    steps = MulliganSteps("s", tmp_path)
    kept, again = steps.steps(), agent(final("c"))
    options = {"stream": how == "stream", "return_full_result": how == "full"}
    given = steps.run(again, "task", max_steps=most, **options)
    given = [*given][-1] if how == "stream" else given
    answer = given if how == "plain" else given.output
    assert answer == kept[-1].action_output
    assert again.model.seen == []
    assert len(steps.steps()) == len(kept)
    assert steps.run(again, "task") == "c"  # that run has ended now
    steps.close()


def test_steps_come_back_with_their_errors_and_images(tmp_path: Path) -> None:
    from PIL import Image

    image = Image.new("RGB", (2, 2), "red")
    steps = MulliganSteps("s", tmp_path)
    one = agent(("fail", {}), final("a"))
    assert steps.run(one, "task", images=[image]) == "a"
    steps.close()
    again = MulliganSteps("s", tmp_path)
    task, failed, ended = again.steps()
    assert task.task_images[0].getpixel((0, 0)) == (255, 0, 0)
    assert isinstance(failed.error, AgentExecutionError | AgentToolExecutionError)
    assert "no" in str(failed.error)
    assert ended.is_final_answer
    # The agent says the same of them as of its own.
    assert texts(failed, ended) == texts(*one.memory.steps[1:])
    again.close()


def texts(*steps: Any) -> list[str]:
    """Return what the model is told of steps, without images."""
    parts = [part for step in steps for said in step.to_messages() for part in said.content]
    return [part["text"] for part in parts if part["type"] == "text"]


def test_a_session_goes_back_to_an_earlier_step(tmp_path: Path) -> None:
    steps = MulliganSteps("s", tmp_path)
    one = agent(("fail", {}), final("a"))
    points = []
    one.step_callbacks.register(
        ActionStep, lambda step, agent: points.append(steps.timeline.checkpoint())
    )
    steps.run(one, "task")
    steps.timeline.restore(points[0].seq)
    before = steps.timeline.state.get("smolagents/has_ended")
    assert before is False
    # Now the run is one that did not end: it goes on from there, with another answer.
    assert steps.run(agent(final("another")), "task") == "another"
    steps.close()


def tasks(steps: MulliganSteps) -> list[str]:
    return [step.task for step in steps.steps() if isinstance(step, TaskStep)]


def test_a_run_continues_from_what_a_program_put_into_the_memory(tmp_path: Path) -> None:
    """As ``agent.run(reset=False)`` does: before the first run, between runs, and elsewhere."""
    steps = MulliganSteps("s", tmp_path)
    one = agent(final("a"), final("b"))
    one.memory.steps.append(TaskStep(task="before"))
    assert steps.run(one, "first", reset=False) == "a"
    assert tasks(steps) == ["before", "first"]
    del one.memory.steps[0]
    one.memory.steps.append(TaskStep(task="between"))
    assert steps.run(one, "second", reset=False) == "b"
    assert tasks(steps) == ["first", "between", "second"]
    assert [type(s) for s in steps.steps()] == [type(s) for s in one.memory.steps]
    steps.close()
    again = MulliganSteps("s", tmp_path)
    other = agent(final("c"))
    other.memory.steps.append(TaskStep(task="elsewhere"))
    assert again.run(other, "third", reset=False) == "c"
    assert tasks(again) == ["first", "between", "second", "elsewhere", "third"]
    again.close()


def test_after_a_restore_a_run_continues_from_the_stored_steps(tmp_path: Path) -> None:
    steps = MulliganSteps("s", tmp_path)
    one = agent(final("a"), final("b"), final("c"))
    steps.run(one, "first")
    point = steps.timeline.checkpoint()
    steps.run(one, "second", reset=False)
    steps.timeline.restore(point)
    steps.run(one, "third", reset=False)
    assert tasks(steps) == ["first", "third"]
    assert [s.task for s in one.memory.steps if isinstance(s, TaskStep)] == ["first", "third"]
    steps.close()


class Coder(Model):
    """Answers with code; one that is None interrupts the run, as Ctrl-C does."""

    def __init__(self, *codes: str | None) -> None:
        super().__init__(model_id="coder")
        self.codes = list(codes)

    def generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        code = self.codes.pop(0)
        if code is None:
            raise KeyboardInterrupt
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{code}\n</code>")


def coder(*codes: str | None, imports: list[str] | None = None) -> CodeAgent:
    made = CodeAgent(tools=[], model=Coder(*codes), additional_authorized_imports=imports)
    made.logger.level = LogLevel.OFF
    return made


@pytest.mark.parametrize(
    "value",
    ["7**9000", "'half \\ud83d'", "{'long' * 1000: 1}", "nested(150)", "nested(900)"],
)
def test_a_variable_that_the_state_cannot_hold_as_it_is_ends_no_run(
    tmp_path: Path, value: str
) -> None:
    nested = "def nested(n):\n    v = 0\n    for i in range(n):\n        v = [v]\n    return v\n"
    steps = MulliganSteps("s", tmp_path)
    first = coder(f"{nested}x = {value}\ny = 1", None)
    with pytest.raises(KeyboardInterrupt):
        steps.run(first, "task")
    second = coder("final_answer(y)")
    assert steps.run(second, "task") == 1
    if value == "nested(900)":
        assert steps.lost == ("x",)
    else:
        assert second.state["x"] == first.python_executor.state["x"]
    steps.close()


def test_a_dictionary_of_the_code_keeps_its_order(tmp_path: Path) -> None:
    steps = MulliganSteps("s", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        steps.run(coder("x = {'b': 1, 'a': 2}", None), "task")
    assert steps.run(coder("final_answer([key for key in x])"), "task") == ["b", "a"]
    steps.close()


def test_what_a_step_returned_is_stored_however_deep_it_nests(tmp_path: Path) -> None:
    steps = MulliganSteps("s", tmp_path)
    loop = "x = 0\nfor i in range(900):\n    x = [x]\nx"
    assert steps.run(coder(loop, "final_answer(1)"), "task") == 1
    assert len(steps.steps()) == 3
    steps.close()


def test_a_variable_whose_class_is_not_loaded_any_more_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_here.py").write_text("class Point:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    steps = MulliganSteps("s", tmp_path / "store")
    code = "import loaded_here\np = loaded_here.Point()\nq = 2"
    with pytest.raises(KeyboardInterrupt):
        steps.run(coder(code, None, imports=["loaded_here"]), "task")
    monkeypatch.delitem(sys.modules, "loaded_here")
    assert steps.run(coder("final_answer(q)"), "task") == 2
    assert "p" in steps.lost
    steps.close()


def test_of_two_processes_that_continue_a_run_the_later_one_writes(tmp_path: Path) -> None:
    """The steps of both would be mixed, and some not stored at all."""
    first, second = MulliganSteps("s", tmp_path), MulliganSteps("s", tmp_path)
    taken: list[Any] = []

    def take_over() -> str:
        taken.append(second.run(agent(final("second")), "task"))
        return "x"

    one = agent(("fail", {}), ("take_over", {}), final("first"))
    one.tools["take_over"] = tool_of(take_over)
    with pytest.raises(Conflict):
        first.run(one, "task")
    assert taken == ["second"]
    assert [step.is_final_answer for step in second.steps()[1:]] == [False, True]
    assert second.timeline.state.get(("smolagents", "has_ended")) is True
    first.close()
    second.close()


def tool_of(function: Any) -> Any:
    class Made(Tool):
        name = "take_over"
        description = "Let another process continue."
        inputs: ClassVar[dict[str, Any]] = {}
        output_type = "string"

        def forward(self) -> str:
            return str(function())

    return Made()


def test_the_callback_alone_stores_the_steps_of_each_run(tmp_path: Path) -> None:
    """Also of the next process, and ``run`` may follow."""
    steps = MulliganSteps("s", tmp_path)
    one = agent(final("a"), final("b"), final("c"))
    one.step_callbacks.register(MemoryStep, steps)
    for task in ("first", "second"):
        one.run(task)
        assert tasks(steps) == [task]
    one.run("third", reset=False)
    assert tasks(steps) == ["second", "third"]
    steps.close()
    again = MulliganSteps("s", tmp_path)
    other = agent(final("d"), final("e"))
    other.step_callbacks.register(MemoryStep, again)
    other.run("elsewhere")
    assert tasks(again) == ["elsewhere"]
    again.close()
    last = MulliganSteps("s", tmp_path)
    assert last.run(agent(final("f")), "elsewhere") == "f"
    last.close()


def test_the_callback_goes_on_after_a_restore(tmp_path: Path) -> None:
    steps = MulliganSteps("s", tmp_path)
    one = agent(final("a"), final("b"), final("c"))
    one.step_callbacks.register(MemoryStep, steps)
    one.run("first")
    checkpoint = steps.timeline.checkpoint("manual")
    one.run("second", reset=False)
    steps.timeline.restore(checkpoint)
    assert tasks(steps) == ["first"]
    one.run("third")
    assert tasks(steps) == ["third"]
    steps.close()


@dataclasses.dataclass
class Node:
    next: Any = None


@pytest.mark.parametrize("depth", [0, 600])
def test_a_result_that_nests_too_deep_is_kept_as_text(tmp_path: Path, depth: int) -> None:
    node = Node()
    node.next = node if depth == 0 else None
    for _ in range(depth):
        node = Node(node)
    steps = MulliganSteps("s", tmp_path)
    step = ActionStep(
        step_number=1, timing=Timing(start_time=0.0, end_time=1.0), action_output=node
    )
    steps(step, SimpleNamespace(memory=SimpleNamespace(steps=[TaskStep(task="t")])))
    assert len(steps.steps()) == 2
    steps.close()
