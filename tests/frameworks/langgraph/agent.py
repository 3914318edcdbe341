"""A program with a graph, as a person would write it: started again, it continues.

It is run by tests, which kill it: ``python agent.py STORE LOG MODE``. Every node writes a line to
the log when it starts and when it is done; the file ``hold`` beside the log makes the node of that
name wait until it is killed.
"""

from __future__ import annotations

import operator
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send

from mulligan.integrations.langgraph import MulliganSaver, resume_input


class State(TypedDict):
    """The words that nodes have added."""

    words: Annotated[list[str], operator.add]


def build(log: Path, saver: Any, durability: str) -> Any:
    """Return the graph: two steps, three tasks at once, one step."""
    hold = log.with_name("hold")

    def node(name: str) -> Any:
        def run(state: Any) -> Any:
            with log.open("a") as file:
                file.write(f"start {name}\n")
            if hold.exists() and hold.read_text() == name:
                signal.pause()
            with log.open("a") as file:
                file.write(f"done {name}\n")
            return {"words": [name]}

        return run

    def work(state: Any) -> Any:
        return node(f"work {state['number']}")(state)

    builder = StateGraph(State)
    builder.add_node("first", node("first"))
    builder.add_node("second", node("second"))
    builder.add_node("work", work)
    builder.add_node("last", node("last"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_conditional_edges(
        "second", lambda state: [Send("work", {"number": n}) for n in range(3)]
    )
    builder.add_edge("work", "last")
    return builder.compile(checkpointer=saver)


def main(store: str, log: str, durability: str) -> None:
    """Run the graph once; a thread that is finished gives its result again."""
    with MulliganSaver(store) as saver:
        graph = build(Path(log), saver, durability)
        config: Any = {"configurable": {"thread_id": "job"}}
        question = resume_input(graph, {"words": ["question"]}, config, once=True)
        result = graph.invoke(question, config, durability=durability)
        print(sorted(result["words"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
