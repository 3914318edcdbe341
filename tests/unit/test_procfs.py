"""Other processes are seen with the files that they write to, and nothing else of theirs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import procfs
from mulligan.procfs import command, open_files

HOLD = """
import mmap, os, sys
kind, path = sys.argv[1], os.fsencode(sys.argv[2])
if kind == "write":
    held = open(path, "ab")
elif kind == "read":
    held = open(path, "rb")
elif kind == "mapped":
    handle = os.open(path, os.O_RDWR)
    held = mmap.mmap(handle, 0)
    os.closerange(3, 64)  # the descriptor, and the copy of it that Python keeps
elif kind == "private":
    handle = os.open(path, os.O_RDONLY)
    held = mmap.mmap(handle, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(handle)
else:
    os.chdir(path)
print("ready", flush=True)
sys.stdin.read()
"""

Hold = Callable[[str, Path], int]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Start a process that holds a path in some way; return its pid."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, path: Path) -> int:
        words = [sys.executable, "-c", HOLD, kind, os.fspath(path)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in started:
        process.communicate()


@pytest.mark.parametrize("kind", ["write", "mapped"])
@pytest.mark.parametrize("name", ["log", "a b", "line\nbreak", "n\udce9"])
def test_a_file_that_is_written_to_is_found(
    tmp_path: Path, hold: Hold, kind: str, name: str
) -> None:
    file = tmp_path / name
    file.write_bytes(b"something")
    pid = hold(kind, file)
    found = open_files(os.fsencode(tmp_path))
    assert [(one.pid, one.path, one.mode) for one in found] == [(pid, os.fsencode(file), kind)]
    assert os.path.basename(sys.executable) in found[0].command


def test_a_directory_that_a_process_stands_in_is_found(tmp_path: Path, hold: Hold) -> None:
    (tmp_path / "inner").mkdir()
    pid = hold("cwd", tmp_path / "inner")
    found = open_files(os.fsencode(tmp_path))
    assert [(one.pid, one.path, one.mode) for one in found] == [
        (pid, os.fsencode(tmp_path / "inner"), "cwd")
    ]


@pytest.mark.parametrize("kind", ["read", "private"])
def test_a_file_that_is_only_read_is_not(tmp_path: Path, hold: Hold, kind: str) -> None:
    (tmp_path / "file").write_bytes(b"something")
    hold(kind, tmp_path / "file")
    assert open_files(os.fsencode(tmp_path)) == []


def test_only_what_is_inside_counts_and_is_there(tmp_path: Path, hold: Hold) -> None:
    for name in ("in", "in-between"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"something")
        hold("write", tmp_path / name / "file")
    assert len(open_files(os.fsencode(tmp_path / "in"))) == 1
    (tmp_path / "in" / "file").unlink()
    assert open_files(os.fsencode(tmp_path / "in")) == []


def test_this_process_and_those_named_are_left_out(tmp_path: Path, hold: Hold) -> None:
    pid = hold("write", tmp_path / "file")
    with (tmp_path / "file").open("ab"):
        assert {one.pid for one in open_files(os.fsencode(tmp_path))} == {pid}
        assert open_files(os.fsencode(tmp_path), ignore={pid}) == []


def test_a_process_that_is_gone_has_no_command() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert command(process.pid) == ""
    assert command(os.getpid()).startswith(sys.orig_argv[0])


def test_the_numbers_of_a_process_are_read_whatever_its_name(tmp_path: Path) -> None:
    """The name stands in front of them, and may hold spaces and parentheses."""
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as child:
        found = procfs.stat(child.pid)
        assert found is not None
        assert (found.parent, found.group) == (os.getpid(), os.getpgid(child.pid))
        assert found.started == procfs.started(child.pid)
        assert not found.has_ended
        child.communicate()


def test_a_stopped_process_is_told_from_one_that_runs() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert not procfs.is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert procfs.is_stopped(child.pid)
        child.kill()


def test_a_process_that_ended_has_not_started_even_before_it_is_waited_for() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = procfs.stat(child.pid)
        assert zombie is not None
        assert zombie.has_ended
        assert procfs.started(child.pid) is None
    assert procfs.stat(child.pid) is None
    assert procfs.status(child.pid) is None
    assert procfs.variables(child.pid) is None


def test_variables_and_fields_are_read() -> None:
    given = {"PATH": os.defpath, "EQUALS": "a=b", "LINES": "one\ntwo", "EMPTY": ""}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=given) as child:
        assert procfs.variables(child.pid) == given
        fields = procfs.status(child.pid)
        assert fields is not None
        assert int(fields["Tgid"]) == child.pid
        assert fields["PPid"] == str(os.getpid())
        child.communicate()


def test_the_variables_of_a_process_that_just_starts_are_waited_for() -> None:
    """Most of the time ``Popen`` returns before the kernel shows them."""
    for number in range(50):
        given = {"PATH": os.defpath, "NUMBER": str(number)}
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=given) as child:
            assert procfs.variables(child.pid) == given
            child.communicate()


def test_variables_are_read_again_until_the_exec_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    monkeypatch.setattr(procfs, "EXEC_SECONDS", float("inf"))
    (tmp_path / "7").mkdir()
    for name in ("environ", "stat"):
        os.mkfifo(tmp_path / "7" / name)
    stat = f"7 (cat) R {'1 ' * 19} 4096 {'1 ' * 26} 0 0 0"

    def kernel() -> None:
        for name, text in (("environ", ""), ("stat", stat), ("environ", "A=1\0B=2\0")):
            (tmp_path / "7" / name).write_text(text)  # waits until it is read

    thread = threading.Thread(target=kernel, daemon=True)
    thread.start()
    assert procfs.variables(7) == {"A": "1", "B": "2"}
    thread.join()


def test_what_has_no_variables_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started with none, and one that ended."""
    monkeypatch.setattr(procfs, "EXEC_SECONDS", float("inf"))
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={}) as child:
        assert procfs.variables(child.pid) == {}
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert procfs.variables(child.pid) in ({}, None)


def test_who_holds_a_lock_is_found_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with file.open("w") as ours, file.open("w") as other:
        inode = os.fstat(ours.fileno()).st_ino
        assert os.getpid() not in procfs.flock_pids(inode)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert os.getpid() in procfs.flock_pids(inode)
        assert procfs.has_open(os.getpid(), ours.fileno())
        assert not procfs.has_open(os.getppid(), ours.fileno())
