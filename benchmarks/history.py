"""A long past: the changes of a session of many events, the same ones for everybody."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from benchmarks.messages import text_messages

Document = dict[str, Any]

MESSAGE_SIZE = 180
COUNTERS = 20
MEMORIES = 2000


class Change(NamedTuple):
    """One event to be: a message said, a counter moved or a fact remembered."""

    verb: Literal["append", "set"]
    path: str
    value: Any


def changes(count: int) -> Iterator[Change]:
    """Of ten changes, six are messages, two counters and two memories, in a random order."""
    source = random.Random(40)
    texts = text_messages(count, MESSAGE_SIZE)
    for index, message in enumerate(texts):
        dice = source.random()
        content = f"{index}: {message['content']}"
        if dice < 0.6:
            yield Change("append", "conversation", message | {"content": content})
        elif dice < 0.8:
            yield Change("set", f"counters/{source.randrange(COUNTERS)}", index)
        else:
            fact = {"fact": content[:100], "learned": index}
            yield Change("set", f"memory/{source.randrange(MEMORIES)}", fact)


def apply(document: Document, change: Change) -> None:
    """Fold one change into a plain document, as a hand-written loop would."""
    if change.verb == "append":
        document.setdefault(change.path, []).append(change.value)
    else:
        component, key = change.path.split("/")
        document.setdefault(component, {})[key] = change.value


def said(document: Document) -> int:
    """How many messages a document holds: a quick proof that it is the right one."""
    return len(document.get("conversation", ()))
