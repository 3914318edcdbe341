"""Lists are stored item by item: one that grew shares everything before."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.frameworks.langgraph.graphs import loop_graph, start
from tests.frameworks.langgraph.test_values import put
from tests.frameworks.needed import needed

needed("langgraph.checkpoint")

Config = dict[str, Any]


def message(text: str, number: int) -> Any:
    from langchain_core.messages import AIMessage

    return AIMessage(content=text, id=f"m{number}")


def contents(saver: Any, config: Config) -> list[str]:
    found = saver.get_tuple(config).checkpoint["channel_values"]["messages"]
    return [one.content for one in found]


def event_bytes(saver: Any) -> int:
    """Return how many bytes the events of the only thread have."""
    from mulligan import codec

    (session,) = saver.store.sessions()
    return sum(len(codec.encode(event.payload)) for event in session.events())


def test_a_list_that_grew_costs_what_was_added(saver: Any, config: Config) -> None:
    messages = [message(f"{n:_<1000}", n) for n in range(100)]
    sizes = []
    for count in range(1, 101):
        config = put(saver, config, {"messages": messages[:count]}, count)
        sizes.append(event_bytes(saver))
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) < 3_000
    assert contents(saver, config) == [one.content for one in messages]


def test_what_a_task_wrote_is_stored_once(saver: Any, config: Config) -> None:
    """As a pending write; the list refers to it."""
    text = "a long answer " * 250
    first = put(saver, config, {"messages": []}, 1)
    said = message(text, 1)
    saver.put_writes(first, [("messages", [said])], "task-1")
    before = event_bytes(saver)
    second = put(saver, first, {"messages": [said]}, 2)
    assert event_bytes(saver) - before < len(text) / 2
    assert contents(saver, second) == [text]


@pytest.mark.parametrize("position", [0, 3, 40, 99])
def test_an_item_that_was_changed_in_place_is_noticed(
    position: int, saver: Any, config: Config
) -> None:
    """At once if it is one of the last; others in turn."""
    messages = [message(f"text {n}", n) for n in range(100)]
    config = put(saver, config, {"messages": messages}, 1)
    messages[position].content = "changed"
    for step in range(2, 40):
        messages = [*messages, message(f"text {len(messages)}", len(messages))]
        config = put(saver, config, {"messages": messages}, step)
        if contents_of_store(saver, config)[position] == "changed":
            break
    assert contents_of_store(saver, config) == [one.content for one in messages]
    assert position < 96 or step == 2


def contents_of_store(saver: Any, config: Config) -> list[str]:
    """Return what a reader that knows nothing finds."""
    from mulligan.integrations.langgraph import MulliganSaver

    return contents(MulliganSaver(saver.store), config)


@pytest.mark.parametrize("seed", range(6))
def test_any_change_of_a_list_is_stored(seed: int, saver: Any, config: Config) -> None:
    """Grown, shortened, exchanged, reordered and replaced, from any earlier checkpoint on."""
    import random

    source = random.Random(seed)
    saved: list[tuple[Config, list[Any]]] = [(config, [])]
    for step in range(1, 60):
        parent, items = source.choice(saved[-3:])
        items = list(items)
        match source.randrange(6):
            case 0:
                items = items[: source.randrange(len(items) + 1)]
            case 1 if items:
                items[source.randrange(len(items))] = message("exchanged", step)
            case 2:
                source.shuffle(items)
            case 3:
                items = [message(f"new {i}", 1000 * step + i) for i in range(source.randrange(70))]
            case _:
                items += [message(f"more {i}", 1000 * step + i) for i in range(3)]
        parent = put(saver, parent, {"messages": items}, step)
        saved.append((parent, items))
    for place, items in saved[1:]:
        wanted = [one.content for one in items]
        assert contents(saver, place) == wanted
        assert contents_of_store(saver, place) == wanted
    listed = {
        one.config["configurable"]["checkpoint_id"]: one.checkpoint["channel_values"]["messages"]
        for one in saver.list(config)
    }
    assert listed == {place["configurable"]["checkpoint_id"]: items for place, items in saved[1:]}


def test_objects_of_a_listing_are_not_taken_for_stored_ones(saver: Any, config: Config) -> None:
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    old = list(graph.get_state_history(config))[2].values["messages"]
    old[0].content = "changed by hand"
    graph.update_state(config, {"messages": [old[0]]})
    assert graph.get_state(config).values["messages"][0].content == "changed by hand"
