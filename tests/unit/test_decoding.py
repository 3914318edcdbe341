"""Threads and processes that decode into a type for the first time at the same time."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import msgspec
import pytest

from mulligan.decoding import ready
from tests.children import Tell, run_child

SOURCE = """
from __future__ import annotations
import msgspec

def look():
    while_looking()
    return int

class Inner(msgspec.Struct):
    a: int
    b: look()

class Outer(msgspec.Struct):
    inner: Inner
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with types whose annotations call ``while_looking``."""
    made = ModuleType("module_of_this_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(SOURCE, made.__dict__)
    return made


def decode(module: ModuleType) -> int:
    found = msgspec.json.decode(b'{"inner": {"a": 1, "b": 2}}', type=ready(module.Outer))
    return int(found.inner.a + found.inner.b)


def test_a_second_thread_waits_until_the_first_has_looked_at_a_type(module: ModuleType) -> None:
    results: list[int] = []
    second = threading.Thread(target=lambda: results.append(decode(module)))

    def start_the_second() -> None:
        module.while_looking = lambda: None
        second.start()
        second.join(0.5)  # as long as it takes to crash

    def look(tell: Tell) -> None:
        module.while_looking = start_the_second
        tell(str(decode(module)))
        second.join()
        tell(str(results))

    # In a process of its own, because that is what ends if it fails.
    assert run_child(look).told == ["3", "[3]"]


def test_a_fork_waits_until_another_thread_has_looked_at_a_type(module: ModuleType) -> None:
    is_looking, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_looking.set()
        go_on.wait(0.5)  # as long as a fork takes that does not wait

    module.while_looking = wait
    first = threading.Thread(target=decode, args=(module,))
    first.start()
    is_looking.wait(60)
    child = run_child(lambda tell: tell(str(decode(module))))
    go_on.set()
    first.join()
    assert child.told == ["3"]
