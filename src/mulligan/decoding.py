"""Types that several threads decode into.

msgspec looks at the annotations of a type when it first decodes into it, and keeps what it found
with the type. A second thread that does the same meanwhile, or a process that is forked meanwhile,
gets half of that and crashes. So each type is looked at under a lock, once, before it is used.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_ready: set[object] = set()
_lock = threading.RLock()


@overload
def ready(type_: type[T]) -> type[T]: ...


@overload
def ready(type_: Any) -> Any: ...


def ready(type_: Any) -> Any:
    """Return the type, after msgspec has looked at it: any thread can decode into it."""
    if type_ not in _ready:
        with _lock:
            msgspec.msgpack.Decoder(type_)
            _ready.add(type_)
    return type_


def _renew_lock() -> None:
    """Replace the lock, which the thread that forked has taken."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(
    before=lambda: _lock.acquire() and None,
    after_in_parent=lambda: _lock.release(),
    after_in_child=_renew_lock,
)
