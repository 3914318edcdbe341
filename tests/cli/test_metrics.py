"""mulligan status --prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import mulligan

LABELS = r'\{([a-z]+="([^"\\\n]|\\.)*",?)+\}'
LINE = re.compile(rf"# (HELP|TYPE) mulligan_[a-z_]+ .+|mulligan_[a-z_]+({LABELS})? -?[0-9.e+-]+")
"""A line of the text format, as the documentation of Prometheus describes it."""


def value(text: str, sample: str) -> float:
    [found] = [line for line in text.splitlines() if line.startswith(f"{sample} ")]
    return float(found.rsplit(" ", 1)[1])


def test_metrics_are_printed_for_prometheus(store, place: Path, write):
    (place / "a.txt").write_text("x" * 1000)
    store("checkpoint")
    write("agents/coder", {"restarts": 3})
    text = store("status", "--prometheus").out
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    assert text.endswith("\n")
    assert value(text, "mulligan_sessions") == 1
    assert value(text, "mulligan_store_size_bytes") > 1000
    assert value(text, 'mulligan_session_events_total{session="main"}') > 1
    assert value(text, 'mulligan_checkpoint_size_bytes{session="main"}') > 0
    assert value(text, 'mulligan_checkpoint_duration_seconds{session="main"}') > 0
    assert value(text, 'mulligan_agent_restarts_total{session="main",agent="coder"}') == 3
    assert "# TYPE mulligan_agent_restarts_total counter\n" in text


def test_names_are_quoted(store, place: Path):
    with mulligan.open(".") as opened:
        opened.session('a"b\\c')
    text = store("-s", 'a"b\\c', "status", "--prometheus").out
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    assert r'mulligan_session_events_total{session="a\"b\\c"} ' in text
    assert "main" not in text


def test_it_is_a_format_of_its_own(store):
    assert store("status", "--prometheus", "--json").code == 2
    assert store("status", "--prometheus", "--watch").code == 2
