"""The terminal of a supervisor, lent to an agent that uses it.

The agent runs in a process group of its own, in the background of the terminal. While it only
prints, Ctrl-C reaches the supervisor, which pauses it at a safe point. When it reads from the
terminal or changes its modes, the kernel stops the group (SIGTTIN, SIGTTOU); then the supervisor
makes it the foreground group and continues it. From there on Ctrl-C and Ctrl-Z are the agent's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator

RESET = (
    b"\x1b[?1049h\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l"
    b"\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[0m"
)
"""Ends what a full-screen program turned on and could not turn off again: the second screen, a
hidden cursor, mouse and focus reports, bracketed paste, keyboard protocols and colours.

Leaving the second screen puts the cursor where it was when that was entered, also if it was left
long ago. Entering it first keeps the cursor of a program that was not in it."""

RESET_SECONDS = 0.2
"""How long the supervisor waits until a terminal takes that; mostly it does at once."""

WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)

MAX_HELD = 100
"""How many sentences wait until an agent returns the terminal; older ones are dropped."""


class Terminal:
    """The terminal that controls this process, which may be in its background; see the module."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._modes = termios.tcgetattr(descriptor)
        self._borrower: int | None = None

    @property
    def is_lent(self) -> bool:
        """Whether an agent has the terminal."""
        return self._borrower is not None

    @property
    def is_there(self) -> bool:
        """Whether the terminal still exists; it goes with its window, or its connection."""
        try:
            termios.tcgetattr(self.descriptor)
        except termios.error:
            return False
        return True

    @property
    def is_own(self) -> bool:
        """Whether the group of this process is in the foreground."""
        return _foreground(self.descriptor) == os.getpgrp()

    def stopped(self, group: int, by: int) -> None:
        """Do what a stop of an agent's group is meant to do.

        A group that wants the terminal gets it and continues. Ctrl-Z, or a terminal that is not
        ours to lend, stops this process as well, so that the shell shows its prompt.
        """
        if by in WANTS_TERMINAL and self._borrower is None and self.is_own:
            self._lend(group)
        elif by == signal.SIGTSTP or by in WANTS_TERMINAL:
            self._suspend(group)

    def take_back(self, group: int, *, reset: bool) -> None:
        """Make the terminal usable after an agent has ended; ``reset`` also its screen."""
        if self._borrower != group:
            return
        self._borrower = None
        # The terminal may be gone with its window; then there is nothing to take back.
        with contextlib.suppress(OSError, termios.error):
            self._make_foreground(os.getpgrp())
            termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._modes)
            if reset:
                self._reset()

    def _reset(self) -> None:
        # In a thread: where nothing reads what the terminal is sent, or Ctrl-S has stopped it, the
        # write waits. The supervisor must go on; what is written later comes after this.
        writing = threading.Thread(target=self._write, args=(RESET,), daemon=True)
        writing.start()
        writing.join(RESET_SECONDS)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self.descriptor, data)

    def _lend(self, group: int) -> None:
        # The group has ended meanwhile, or the terminal is gone.
        with contextlib.suppress(OSError, termios.error):
            # As they are now: before, in the background, they were those of another program.
            self._modes = termios.tcgetattr(self.descriptor)
            self._make_foreground(group)
            self._borrower = group
            os.killpg(group, signal.SIGCONT)

    def _suspend(self, group: int) -> None:
        """Stop the job of this process until the shell continues it."""
        if self._borrower is not None:
            # Before this process stops: the shell must find the terminal in the modes that it left.
            self.take_back(group, reset=False)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        # Continued. In the background the agent runs without the terminal, until it wants it.
        if self.is_own:
            self._lend(group)
        else:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGCONT)

    def _make_foreground(self, group: int) -> None:
        # This process may be in the background: unless SIGTTOU is blocked, the call would stop it.
        # Not ignored instead: agents would inherit that, and no longer be stopped.
        with _blocked(signal.SIGTTOU):
            os.tcsetpgrp(self.descriptor, group)


class HeldReports:
    """Passes on sentences for people, but none while an agent has the terminal.

    They would appear in the middle of its screen.
    """

    def __init__(self, say: Callable[[str], None], terminal: Terminal | None) -> None:
        self._say = say
        self._terminal = terminal
        self._held: deque[str] = deque(maxlen=MAX_HELD)

    def __call__(self, line: str) -> None:
        """Pass on a sentence, after those that had to wait."""
        self._held.append(line)
        if self._terminal is None or not self._terminal.is_lent:
            while self._held:
                self._say(self._held.popleft())


def terminal_of(descriptor: int) -> Terminal | None:
    """Return the terminal of a descriptor, if it controls this process; from the main thread."""
    try:
        if not os.isatty(descriptor) or _foreground(descriptor) is None:
            return None
        found = Terminal(descriptor)
    except (OSError, termios.error):
        return None
    for number in WANTS_TERMINAL:
        # tmux starts a window's program with these ignored. An agent would inherit that: reading
        # would then fail instead of stopping it.
        signal.signal(number, signal.SIG_DFL)
    return found


def _foreground(descriptor: int) -> int | None:
    try:
        return os.tcgetpgrp(descriptor)
    except OSError:  # it is not the controlling terminal, or it is gone
        return None


@contextlib.contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
