"""What protects objects from a collection, and how to take each protection out in a test.

A campaign that never reports anything proves little. With one of these taken out, it must report a
lost object: ``python -m mulligan.testing.collector --without pins``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mulligan.journal.kv_view import KvView
from mulligan.journal.protocol import View
from mulligan.model import Digest
from mulligan.pins import GracePeriod, Pins
from mulligan.upkeep.space import free
from mulligan.upkeep.space.mark import Marker


def _no_pins() -> None:
    # As in a store that cannot be written: no file is locked.
    _replace(Pins, "_opened", lambda self, file: -1)


def _no_grace() -> None:
    _replace(GracePeriod, "is_over", lambda self: True)


def _no_fresh() -> None:
    def nothing(self: KvView) -> Iterator[Digest]:
        return iter(())

    _replace(KvView, "fresh", nothing)


def _all_usable() -> None:
    _replace(KvView, "locate_usable", KvView.locate_all)


def _no_catch_up() -> None:
    def nothing(self: Marker, view: View) -> list[Digest]:
        return []

    _replace(Marker, "catch_up", nothing)
    _replace(Marker, "behind", lambda self, view: 0)


def _no_second_look() -> None:
    look, wait = free._Freeing._live, free._Freeing._wait

    def first_look(self: Any) -> None:
        found = look(self)
        wait(self)
        self._live = lambda: found

    _replace(free._Freeing, "_wait", first_look)


PROTECTIONS: dict[str, Callable[[], None]] = {
    "pins": _no_pins,
    "grace": _no_grace,
    "fresh": _no_fresh,
    "usable": _all_usable,
    "catch-up": _no_catch_up,
    "second-look": _no_second_look,
}
"""Names, and what takes each out of this process for good: call it in a child process only."""


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)
