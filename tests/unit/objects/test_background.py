"""Jobs run in a thread of their own, also beside forks and while a program exits."""

from __future__ import annotations

import subprocess
import sys
import threading
from threading import Thread

import pytest

from mulligan.objects.background import Helper

PATIENCE = 120.0
"""Seconds after which a program hangs, on however busy a machine."""


def test_jobs_run_in_order_and_their_errors_are_raised_where_the_result_is_asked_for() -> None:
    helper = Helper()
    order: list[int] = []
    jobs = [helper.do(order.append, number) for number in range(20)]
    broken = helper.do(int, "no number")
    helper.close()
    assert order == list(range(20))
    assert all(job.done() for job in jobs)
    with pytest.raises(ValueError, match="no number"):
        broken.result()
    assert helper.do(int, "7").result() == 7  # in another thread
    helper.close()


def printed(program: str) -> str:
    start = "import atexit, sys; from mulligan.objects.background import Helper"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}\n{program}"], capture_output=True, timeout=PATIENCE
    )
    assert done.stderr == b""
    return done.stdout.decode().strip()


def test_jobs_are_done_while_a_program_exits() -> None:
    assert printed("atexit.register(lambda: print(Helper().do(sum, [1, 2]).result()))") == "3"


@pytest.mark.parametrize("when", ["before", "after"])
def test_jobs_are_done_by_what_is_collected_at_the_end_of_a_program(when: str) -> None:
    """By then, threads never run again."""
    program = f"""
import gc, threading

gc.set_threshold(0)  # collected at the end of the program, and not before

class Last:
    def __init__(self):
        self.me, self.helper = self, Helper()
        self.helper.do(sum, []).result()
        if {when == "before"}:
            self.busy = self.helper.do(threading.Event().wait)
            self.job = self.helper.do(sum, [1, 2])
    def __del__(self):
        job = self.job if {when == "before"} else self.helper.do(sum, [1, 2])
        print(job.result(), sys.is_finalizing())
        self.helper.close()

Last()
"""
    assert printed(program) == "3 True"


def test_no_locks_are_used_that_a_fork_takes_in_other_modules() -> None:
    """A fork of another thread has them while it waits for the transaction of this one."""
    print_all = "print([name for name in sys.modules if name in ('concurrent.futures', 'logging')])"
    assert printed(f"Helper().do(sum, [1, 2]).result(); {print_all}") == "[]"


def test_jobs_are_done_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    helper = Helper()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert helper.do(sum, [1, 2]).result() == 3
    helper.close()


def test_a_helper_that_is_dropped_ends_its_thread() -> None:
    helper = Helper()
    thread = helper.do(threading.current_thread).result()
    del helper
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_helper_is_closed_by_garbage_that_its_thread_collects() -> None:
    helper = Helper()
    assert helper.do(helper.close).result() is None
    assert helper.do(int, "7").result() == 7
    helper.close()
