"""Programs of several shapes, as people write them: started again, they continue.

They are run by tests: ``python shapes.py SHAPE STORE LOG DURABILITY [KILL]``. The log has a line
for every piece of work that starts and is done, and for everything that the saver has saved. The
piece of work named KILL kills the process, once what came before it is saved.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from mulligan.integrations.langgraph import MulliganSaver, resume_input, tasks_in_doubt

CONFIG: Any = {"configurable": {"thread_id": "job"}}

WORK = {
    "parallel": [["first"], ["second"], ["work 0", "work 1", "work 2"], ["last"]],
    "subgraph": [["before"], ["inner one"], ["inner two"], ["after"]],
    "interrupt": [["draft"], ["ask"], ["send"]],
    "functional": [["one"], ["two"], ["three", "four"], ["five"]],
}
"""The work of each shape, step by step."""


class State(TypedDict):
    """What was done."""

    words: Annotated[list[str], operator.add]


class Log:
    """A file with a line for everything that happened."""

    def __init__(self, file: Path, steps: list[list[str]], kill: str, durability: str) -> None:
        self._file = file
        self._steps = steps
        self._kill = kill
        self._waits = durability != "exit"

    def add(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")

    def lines(self) -> set[str]:
        return set(self._file.read_text().splitlines()) if self._file.exists() else set()

    def work(self, name: str) -> str:
        """Do a piece of work; be killed in it if it is the one."""
        self.add(f"start {name}")
        if name == self._kill:
            self._wait_for_others(name)
            os.kill(os.getpid(), signal.SIGKILL)
        self.add(f"done {name}")
        return name

    def answered(self, name: str, answer: str) -> None:
        """Wait until the answer to a piece of work is saved, if that is to be killed.

        LangGraph saves it in another thread: whether the work had an answer is known only then.
        """
        while self._waits and name == self._kill and f"saved {answer}" not in self.lines():
            time.sleep(0.001)

    def _wait_for_others(self, name: str) -> None:
        step = next(i for i, names in enumerate(self._steps) if name in names)
        others = {other for names in self._steps[: step + 1] for other in names} - {name}
        kind = "saved" if self._waits else "done"
        while not {f"{kind} {other}" for other in others} <= self.lines():
            time.sleep(0.001)
        # LangGraph never waits for the first checkpoint, that of the input.
        while kind == "saved" and not any(line.startswith("checkpoint") for line in self.lines()):
            time.sleep(0.001)


class LoggedSaver(MulliganSaver):
    """Logs what it has saved: then it must be there, whatever happens."""

    log: Log

    def put(self, *arguments: Any) -> Any:
        saved = super().put(*arguments)
        address = saved["configurable"]
        self.log.add(f"checkpoint {address['checkpoint_ns']} {address['checkpoint_id']}")
        return saved

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        for _, value in writes:
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str):
                    self.log.add(f"saved {word}")


def nodes(*names: str, log: Log) -> StateGraph[Any]:
    """Return a graph with one node after the other."""
    builder = StateGraph(State)
    for name, before in zip(names, (START, *names), strict=False):
        builder.add_node(name, lambda state, name=name: {"words": [log.work(name)]})
        builder.add_edge(before, name)
    return builder


def parallel(log: Log, saver: Any) -> Any:
    builder = nodes("first", "second", log=log)
    builder.add_node("work", lambda state: {"words": [log.work(f"work {state['number']}")]})
    builder.add_node("last", lambda state: {"words": [log.work("last")]})
    builder.add_conditional_edges(
        "second", lambda _: [Send("work", {"number": n}) for n in (0, 1, 2)]
    )
    builder.add_edge("work", "last")
    return builder.compile(checkpointer=saver)


def subgraph(log: Log, saver: Any) -> Any:
    inner = nodes("inner one", "inner two", log=log).compile()

    def call(state: State) -> Any:
        return {"words": inner.invoke({"words": []})["words"]}

    builder = nodes("before", log=log)
    builder.add_node("nested", call)
    builder.add_node("after", lambda state: {"words": [log.work("after")]})
    builder.add_edge("before", "nested")
    builder.add_edge("nested", "after")
    return builder.compile(checkpointer=saver)


def interrupting(log: Log, saver: Any) -> Any:
    def ask(state: State) -> Any:
        answer = interrupt("send it?")
        log.answered("ask", answer)
        return {"words": [log.work("ask"), f"answer {answer}"]}

    builder = nodes("draft", log=log)
    builder.add_node("ask", ask)
    builder.add_node("send", lambda state: {"words": [log.work("send")]})
    builder.add_edge("draft", "ask")
    builder.add_edge("ask", "send")
    return builder.compile(checkpointer=saver)


def functional(log: Log, saver: Any) -> Any:
    do = task(log.work, name="do")

    @entrypoint(checkpointer=saver)
    def flow(input: Any) -> Any:
        words = [do("one").result(), do("two").result()]
        words += [future.result() for future in [do("three"), do("four")]]
        return {"words": [*input["words"], *words, do("five").result()]}

    return flow


SHAPES: dict[str, Callable[[Log, Any], Any]] = {
    "parallel": parallel,
    "subgraph": subgraph,
    "interrupt": interrupting,
    "functional": functional,
}


def main(shape: str, store: str, log: str, durability: Any, kill: str = "") -> None:
    """Run a graph to its end, and print what was done, and before what may have been."""
    with LoggedSaver(store) as saver:
        saver.log = Log(Path(log), WORK[shape], kill, durability)
        graph = SHAPES[shape](saver.log, saver)
        print("in doubt", [found.name for found in tasks_in_doubt(graph, CONFIG)])
        input = resume_input(graph, {"words": ["input"]}, CONFIG, once=True)
        result = graph.invoke(input, CONFIG, durability=durability)
        if "__interrupt__" in result:
            result = graph.invoke(Command(resume="yes"), CONFIG, durability=durability)
        print("result", sorted(result["words"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
