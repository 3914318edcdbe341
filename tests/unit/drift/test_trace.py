"""Recorded runs are read line by line, and what cannot be read is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mulligan.drift.observation import ACTION, MESSAGE
from mulligan.drift.trace import TraceStep, observed, read_traces
from mulligan.errors import InvalidTrace

RUN = {"id": "r1", "labels": {"x": 1}, "steps": [{"i": 0, "action": "search", "args": "a"}]}


def test_a_plain_and_a_compressed_file_read_alike(tmp_path: Path) -> None:
    text = (json.dumps(RUN) + "\n\n" + json.dumps(RUN)).encode()
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert list(read_traces(plain)) == list(read_traces(packed))
    assert [run.id for run in read_traces(plain)] == ["r1", "r1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ":1: Input data was truncated"),
        ('{"id": "x"}', ":1: Object missing required field `steps`"),
        (json.dumps(RUN) + "\n[]", ":2: Expected `object`"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidTrace) as caught:
        list(read_traces(file))
    assert said in str(caught.value)


def test_a_missing_and_a_torn_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="cannot be read"):
        list(read_traces(tmp_path / "none"))
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(json.dumps(RUN).encode())[:-9])
    with pytest.raises(InvalidTrace):
        list(read_traces(torn))


def test_calls_of_a_model_are_messages_and_tools_are_actions() -> None:
    assert observed(TraceStep("llm_act", args="I think")).kind == MESSAGE
    assert observed(TraceStep("respond", args="Hello")).kind == MESSAGE
    assert observed(TraceStep("search", args="{}")).kind == ACTION
