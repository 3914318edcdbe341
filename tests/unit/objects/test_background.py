"""Jobs run in a thread of their own, also beside forks and while a program exits."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import thread as executors
from threading import Thread

import pytest

from mulligan.objects.background import Helper


def test_jobs_run_in_order_and_their_errors_are_raised_where_the_result_is_asked_for() -> None:
    helper = Helper()
    order: list[int] = []
    futures = [helper.do(order.append, number) for number in range(20)]
    broken = helper.do(int, "no number")
    helper.close()
    assert order == list(range(20))
    assert all(future.done() for future in futures)
    with pytest.raises(ValueError, match="no number"):
        broken.result()
    assert helper.do(int, "7").result() == 7  # in another thread
    helper.close()


def test_a_job_does_not_wait_for_the_fork_of_another_thread() -> None:
    """Inside a transaction, which the fork waits for."""
    helper = Helper()
    thread = Thread(target=helper.do, args=(int,))
    with executors._global_shutdown_lock:  # as ``concurrent.futures`` does before a fork
        thread.start()
        thread.join(60)
        is_waiting = thread.is_alive()
    thread.join()
    helper.close()
    assert not is_waiting


def test_jobs_are_done_while_a_program_exits() -> None:
    program = "\n".join(
        (
            "import atexit",
            "from mulligan.objects.background import Helper",
            "atexit.register(lambda: print(Helper().do(sum, [1, 2]).result()))",
        )
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


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
    thread.join(60)
    assert not thread.is_alive()
