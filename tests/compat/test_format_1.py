"""A store of format 1 opens for ever, and everything in it is found as it was written."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mulligan
from mulligan.codec import FORMAT_VERSION

HERE = Path(__file__).parent
GOLDEN = HERE / "format-1"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", HERE / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy of the golden store, as it was released."""
    with tarfile.open(GOLDEN / "store.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_everything_is_found_as_it_was_written(store: Path, golden: ModuleType) -> None:
    found = json.loads(json.dumps(golden.describe(store)))
    assert list(found) == list(EXPECTED)
    for name, expected in EXPECTED.items():
        for part, content in expected.items():
            assert found[name][part] == content, f"{part} of session {name!r}"


def test_the_golden_store_has_some_of_everything(golden: ModuleType) -> None:
    kinds = {event[1] for session in EXPECTED.values() for event in session["events"]}
    assert kinds >= {
        "checkpoint.created",
        "restore.applied",
        "session.created",
        "session.forked",
        "state.append",
        "state.delete",
        "state.set",
    }
    assert EXPECTED["run"]["state"]["types"]["text"] == golden.EVERY_TYPE["text"]
    size = (GOLDEN / "store.tar.gz").stat().st_size + (GOLDEN / "expected.json").stat().st_size
    assert size < 300_000


def test_it_is_sound(store: Path) -> None:
    with mulligan.open(store, create=False) as opened:
        report = opened.verify()
    assert report.problems == ()
    assert report.sessions == len(EXPECTED)
    assert report.keyframes > 0


def test_it_can_be_gone_on_with(store: Path) -> None:
    before = (store / ".mulligan" / "FORMAT").read_bytes()
    with mulligan.open(store) as opened:
        run = opened.session("run")
        text = run.state.get("types/text")
        run.state.set("after", "x" * 10_000)
        run.restore("message 7")
        run.undo()
        assert run.state.get("types/text") == text
        assert run.state.get("after") == "x" * 10_000
        run.fork("types").checkpoint(label="new")
        assert opened.verify().ok
    assert (store / ".mulligan" / "FORMAT").read_bytes() == before


@pytest.mark.skipif(FORMAT_VERSION != 1, reason="this version writes another format")
def test_what_is_written_now_is_the_same(tmp_path: Path, golden: ModuleType) -> None:
    golden.build(tmp_path)
    found = json.loads(json.dumps(golden.describe(tmp_path)))
    for name, expected in EXPECTED.items():
        # The hash of an event covers the checkpoints before it, which hold the machine they
        # were made on, so only those before the first one are the same everywhere.
        first = expected["checkpoints"][0][0]
        early = [event for event in expected["events"] if event[0] < first]
        assert found[name]["events"][: len(early)] == early
        assert [e[:5] for e in found[name]["events"]] == [e[:5] for e in expected["events"]]
        assert found[name]["digests"] == expected["digests"]
        assert found[name]["state"] == expected["state"]
