"""`mulligan run` on a real terminal: who reads what is typed, and in which state it is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import procfs
from tests.children import end_processes_in

PATIENCE = 60.0
PYTHON = sys.executable
MULLIGAN = f"{PYTHON} -m mulligan"

READS = """
    import os, sys
    # In one write each: the supervisor prints between two.
    restarts = " ".join(["restarts", os.environ["MULLIGAN_RESTARTS"], *sys.argv[1:]])
    os.write(1, f"{restarts}\\n".encode())
    os.write(1, f"hello {input('name? ')}\\n".encode())
"""

FULL_SCREEN = """
    import os, tty
    tty.setraw(0)
    os.write(1, b"\\x1b[?1049h")
    os.write(1, b"raw %d\\n" % os.getpid())
    while True:
        key = os.read(0, 1)
        os.write(1, b"key %d\\n" % key[0])
        if key == b"q":
            break
"""


class TerminalWindow:
    """A shell with job control in a terminal of its own, and everything that it printed."""

    def __init__(self, directory: Path) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # A job in the background ignores some of them; a new terminal does not.
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGTSTP, signal.SIGTTIN):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(directory)
            variables = {**os.environ, "PS1": "ready> ", "TERM": "xterm", "HISTFILE": ""}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], variables)
        self.seen = ""
        self._read = 0

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, text: str) -> str:
        """Wait until the terminal shows a text after what was waited for before; return it."""
        while (at := self.seen.find(text, self._read)) < 0:
            ready, _, _ = select.select([self.master], [], [], PATIENCE)
            assert ready, f"{text!r} did not appear in {self.seen[self._read :]!r}"
            self.seen += os.read(self.master, 65536).decode(errors="replace")
        found = self.seen[self._read : at]
        self._read = at + len(text)
        return found

    def status(self) -> int:
        """Return the exit status of the last command."""
        self.until("ready> ")
        self.type("echo status=$((0+$?)).\n")
        self.until("status=")
        self.until("status=")
        return int(self.until("."))

    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self.master)[3] & termios.ECHO)

    def close(self) -> None:
        os.close(self.master)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    mulligan.open(tmp_path).close()
    yield tmp_path
    end_processes_in(tmp_path)


@pytest.fixture
def window(place: Path) -> Iterator[TerminalWindow]:
    opened = TerminalWindow(place)
    yield opened
    opened.close()


def program(place: Path, code: str) -> str:
    (place / "program.py").write_text(textwrap.dedent(code))
    return f"{PYTHON} program.py"


FILLS = """
    import os, tty
    from pathlib import Path
    tty.setraw(0)
    os.write(1, b"raw %d\\r\\n" % os.getpid())
    os.set_blocking(1, False)
    while True:
        try:
            os.write(1, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(1, True)
            Path("full").touch()
"""

WAITS = """
    import time
    from pathlib import Path
    Path("again").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""


def wait_for(file: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < until, f"there is no {file.name}"
        time.sleep(0.01)


def test_a_program_that_reads_gets_what_is_typed(place: Path, window: TerminalWindow) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, READS)}\n")
    window.until("name? ")
    window.type("ann\n")
    window.until("hello ann")
    assert window.status() == 0
    with mulligan.open(place) as store:
        assert store.session("main").state.get("agents/agent/state") == "done"
        assert store.session("main").checkpoints()


def test_a_window_that_ignores_the_signals_of_job_control(
    place: Path, window: TerminalWindow
) -> None:
    """As tmux opens one for a command."""
    run = f"{MULLIGAN} run -- {program(place, READS)}"
    window.type(f"(trap '' TTIN TTOU; exec {run})\n")
    window.until("name? ")
    window.type("ann\n")
    window.until("hello ann")
    assert window.status() == 0


def test_a_full_screen_program_gets_every_key(place: Path, window: TerminalWindow) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, FULL_SCREEN)}\n")
    window.until("raw ")
    window.type("\x03")
    window.until("key 3")
    window.type("q")
    assert window.status() == 0
    assert window.has_echo()


def test_a_killed_program_is_restarted_although_nothing_reads_its_terminal(
    place: Path, window: TerminalWindow
) -> None:
    """As when Ctrl-S stopped it, or its window is suspended."""
    code = program(place, FILLS)
    (place / "second.py").write_text(textwrap.dedent(WAITS))
    window.type(f"{MULLIGAN} run --again '{PYTHON} second.py' -- {code}\n")
    window.until("raw ")
    pid = int(window.until("\r"))
    wait_for(place / "full")
    os.kill(pid, signal.SIGKILL)
    wait_for(place / "again")
    window.until("\x1b[?1049l")  # what the terminal was to be sent
    (place / "go").touch()
    assert window.status() == 0
    assert window.has_echo()


def test_a_killed_program_leaves_a_usable_terminal_and_is_restarted(
    place: Path, window: TerminalWindow
) -> None:
    code = program(place, FULL_SCREEN)
    (place / "second.py").write_text(textwrap.dedent(READS))
    window.type(f"{MULLIGAN} run --again '{PYTHON} second.py on' -- {code}\n")
    window.until("raw ")
    pid = int(window.until("\n"))
    os.kill(pid, signal.SIGKILL)
    window.until("\x1b[?1049l")
    window.until("restarts 1 on")
    assert window.has_echo()
    window.type("bob\n")
    window.until("hello bob")
    assert window.status() == 0


def test_the_cursor_stays_where_a_program_that_failed_left_it(
    place: Path, window: TerminalWindow
) -> None:
    window.type(f"{MULLIGAN} run --restart never -- bash -c 'read -p name? x; exit 7'\n")
    window.until("name?")
    window.until("name?")
    window.type("ann\n")
    # Leaving a second screen that was not entered would put it where an earlier program had it.
    assert window.until("\x1b[?1049l").endswith("\x1b[?1049h")
    assert window.status() == 7


def test_ctrl_c_of_a_person_is_no_reason_to_restart(place: Path, window: TerminalWindow) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, READS)}\n")
    window.until("name? ")
    window.type("\x03")
    assert window.status() == 130
    window.type(f"{MULLIGAN} resume\n")
    window.until("restarts 1")
    window.until("name? ")
    window.type("eve\n")
    window.until("hello eve")
    assert window.status() == 0


def test_ctrl_c_reaches_the_supervisor_of_a_program_that_does_not_read(
    place: Path, window: TerminalWindow
) -> None:
    agent = """
        import mulligan
        session = mulligan.attach()
        for cycle in session.loop():
            with cycle:
                if cycle.number == 1:
                    print("at work", flush=True)
                session.internal.clock.sleep(0.01)
        print("at a safe point", flush=True)
    """
    window.type(f"{MULLIGAN} run -- {program(place, agent)}\n")
    window.until("at work")
    window.type("\x03")
    window.until("pausing")
    window.until("at a safe point")
    assert window.status() == 130


def test_ctrl_z_stops_the_whole_job_and_fg_continues_it(
    place: Path, window: TerminalWindow
) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, READS)}\n")
    window.until("name? ")
    window.type("\x1a")
    window.until("Stopped")
    window.until("ready> ")
    window.type("echo shell is here\n")
    window.until("\nshell is here")
    window.type("fg\n")
    window.until("mulligan run")
    window.type("joe\n")
    window.until("hello joe")
    assert window.status() == 0


def test_a_pipe_reaches_the_program(place: Path, window: TerminalWindow) -> None:
    window.type(f"echo sue | {MULLIGAN} run -- {program(place, READS)}\n")
    window.until("hello sue")
    assert window.status() == 0


SIZES = """
    import os, signal, tty

    def tell(*_):
        os.write(1, b"columns %d\\n" % os.get_terminal_size(0).columns)

    signal.signal(signal.SIGWINCH, tell)
    tty.setcbreak(0)
    os.write(1, b"ready\\n")
    while os.read(0, 1) != b"q":
        pass
"""


def test_a_program_learns_of_another_size_of_the_window(
    place: Path, window: TerminalWindow
) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, SIZES)}\n")
    window.until("ready\r\n")
    fcntl.ioctl(window.master, termios.TIOCSWINSZ, struct.pack("4H", 40, 123, 0, 0))
    window.until("columns 123")
    window.type("q")
    assert window.status() == 0


def supervisor_of(place: Path) -> int:
    """Return the process that holds the lease of the supervisor."""
    with mulligan.open(place) as store:
        lease = store.session("main").internal.lease_of("supervisor")
    assert lease is not None
    return lease.holder.process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_supervisor_that_is_told_to_end_leaves_a_usable_terminal(
    place: Path, window: TerminalWindow, number: int
) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, FULL_SCREEN)}\n")
    window.until("raw ")
    pid = int(window.until("\n"))
    os.kill(supervisor_of(place), number)
    assert window.status() == 75
    assert window.has_echo()
    assert not Path(f"/proc/{pid}").exists()


def test_a_window_that_is_closed_pauses_the_session(place: Path, window: TerminalWindow) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, FULL_SCREEN)}\n")
    window.until("raw ")
    pid = int(window.until("\n"))
    ended = [os.pidfd_open(supervisor_of(place)), os.pidfd_open(pid)]
    os.close(window.master)
    window.master = os.open(os.devnull, os.O_RDWR)
    for handle in ended:
        assert select.select([handle], [], [], PATIENCE)[0]
        os.close(handle)
    with mulligan.open(place) as store:
        assert store.session("main").internal.control("status") == "paused"


def test_a_program_in_the_background_waits_for_fg_before_it_reads(
    place: Path, window: TerminalWindow
) -> None:
    window.type(f"{MULLIGAN} run -- {program(place, READS)} &\n")
    window.until("restarts 0")
    with mulligan.open(place) as store:
        session = store.session("main", actor="test")
        pid = session.state.get("agents/agent/process_id")
    supervisor = supervisor_of(place)
    until(lambda: procfs.is_stopped(supervisor) and procfs.is_stopped(pid))
    window.type("fg\n")
    window.until("name? ")
    window.type("ann\n")
    window.until("hello ann")
    assert window.status() == 0
    assert window.has_echo()


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
