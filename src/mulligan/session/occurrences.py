"""Which occurrence of a name a call is: counted by each handle from its start.

A program that starts again makes the same calls in the same order, so its nth call of a name meets
the nth record. A call that did not end well returns its number: a retry is the same occurrence.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict


class Occurrences:
    """The numbers that calls of this handle have taken; used from any thread."""

    def __init__(self) -> None:
        # Steps may run in several threads: no two calls of a name may get the same number.
        self._lock = threading.Lock()
        self._next: dict[tuple[str, str], int] = defaultdict(int)
        self._returned: dict[tuple[str, str], list[int]] = defaultdict(list)

    def take(self, scope: str, name: str) -> int:
        """Return the lowest number that no call of this name has."""
        with self._lock:
            if returned := self._returned[scope, name]:
                return heapq.heappop(returned)
            number = self._next[scope, name]
            self._next[scope, name] = number + 1
            return number

    def put_back(self, scope: str, name: str, number: int) -> None:
        """Let the next call of this name have the number again."""
        with self._lock:
            heapq.heappush(self._returned[scope, name], number)

    def restart(self, scope: str) -> None:
        """Count from the start again: a task was claimed again, and is done from its start."""
        with self._lock:
            for known in (self._next, self._returned):
                for key in [key for key in known if key[0] == scope]:
                    del known[key]


class Scope:
    """What the calls of a handle belong to: the task it works on, or else its agent."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.task: str | None = None
        self.occurrences = Occurrences()

    @property
    def name(self) -> str:
        """The name under which steps and effects are counted."""
        return f"agent:{self.agent}" if self.task is None else f"task:{self.task}"

    def claimed(self, task: str) -> None:
        """Note that the handle works on a task from its start."""
        self.task = task
        self.occurrences.restart(self.name)

    def ended(self, task: str) -> None:
        """Note that the handle no longer works on a task."""
        if self.task == task:
            self.task = None
