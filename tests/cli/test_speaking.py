"""Printing from a thread of its own: nothing is lost, and nothing ends it."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from mulligan.cli.render.output_queue import OutputQueue

PATIENCE = 60


class Terminal(io.TextIOWrapper):
    """A terminal that does not take anything while it is stopped."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\n")
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_written_to = threading.Event()

    def write(self, text: str) -> int:
        self.is_written_to.set()
        assert self.goes_on.wait(PATIENCE)
        return super().write(text)

    def lines(self) -> list[str]:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode(self.encoding).splitlines()


def test_however_fast_lines_come_all_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with OutputQueue() as output_queue:
        for number in range(100_000):
            output_queue.say(str(number), err=False)
    assert out.lines() == [str(number) for number in range(100_000)]


def test_what_a_terminal_cannot_show_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal("latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    with OutputQueue() as output_queue:
        for line in ("one", "é…", "three"):
            output_queue.say(line, err=False)
    assert out.lines() == ["one", "é?", "three"]


def test_what_does_not_fit_while_a_terminal_is_stopped_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    out.goes_on.clear()
    with OutputQueue(most=20) as output_queue:
        output_queue.say("first", err=False)
        assert out.is_written_to.wait(PATIENCE)
        for number in range(10):
            output_queue.say(f"line{number}", err=False)
        out.goes_on.set()
    assert out.lines() == ["first", "line0", "line1", "line2", "line3"]
    assert err.lines() == ["… 6 lines were not shown: nothing read the output."]
