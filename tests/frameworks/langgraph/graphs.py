"""Graphs that the tests run, and what their histories look like without ids and times."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict


class Talk(TypedDict):
    """A conversation, and a number that nodes count up."""

    messages: Annotated[list[Any], "add_messages"]
    n: int


def talk_state() -> Any:
    """Return the type of a conversation; LangGraph is imported only now."""
    from langgraph.graph.message import add_messages

    return TypedDict("Talk", {"messages": Annotated[list, add_messages], "n": int})


def loop_graph(saver: Any, until: int = 5, act: Any = None) -> Any:
    """Return a graph whose one node answers until ``n`` is reached."""
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, StateGraph

    def answer(state: Any) -> Any:
        if act is not None:
            act(state)
        said = AIMessage(content=f"answer {state['n']}", id=f"answer-{len(state['messages'])}")
        return {"messages": [said], "n": state["n"] + 1}

    builder = StateGraph(talk_state())
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", lambda s: "answer" if s["n"] < until else END)
    return builder.compile(checkpointer=saver)


def start(text: str = "hello") -> dict[str, Any]:
    """Return the input of a conversation."""
    from langchain_core.messages import HumanMessage

    return {"messages": [HumanMessage(content=text, id="first")], "n": 0}


def words_state() -> Any:
    """Return a state with a list of words that nodes add to."""
    return TypedDict("Words", {"words": Annotated[list, operator.add]})


def story(graph: Any, config: Any) -> list[Any]:
    """Return the history of a thread without ids and times, the newest first."""
    return [
        (
            snapshot.values,
            snapshot.next,
            {k: v for k, v in snapshot.metadata.items() if k != "parents"},
            [
                (t.name, t.path, t.error, [i.value for i in t.interrupts], t.result)
                for t in snapshot.tasks
            ],
        )
        for snapshot in graph.get_state_history(config)
    ]
