"""Terminals that can do less: no colours, no escape sequences, no Unicode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan.cli.render.terminal import PLAIN, encodable
from tests.cli.conftest import Cli

Terminal = Callable[..., tuple[int, str]]

PLAIN_TERMINALS = [{"NO_COLOR": "1"}, {"TERM": "dumb"}]
POOR = [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
WORDS = "Größe → Ω…"

EVERY_LOOK: list[list[str]] = [
    ["status"],
    ["log"],
    ["show"],
    ["diff", "@latest~1"],
    ["verify"],
    ["restore", "@latest~1", "--dry-run"],
    ["show", "nö-whère"],
]


@pytest.fixture
def used(store: Cli, place: Path) -> Cli:
    (place / "fïle → 1.txt").write_text("one …\n")
    store("checkpoint", "--label", "first", "-m", WORDS)
    store("state", "set", "memory/text", json.dumps(WORDS))
    store("state", "append", "conversation", json.dumps({"role": "user", "content": WORDS}))
    store("tasks", "add", WORDS)
    store("mail", "send", "coder", WORDS, WORDS)
    (place / "fïle → 1.txt").write_text("two →\n" * 100)
    store("checkpoint", "--label", "second")
    return store


@pytest.mark.parametrize("environment", PLAIN_TERMINALS, ids=["no-color", "dumb"])
@pytest.mark.parametrize("args", EVERY_LOOK, ids=" ".join)
def test_no_escape_where_none_is_wanted(
    used: Cli, on_terminal: Terminal, args: list[str], environment: dict[str, str]
) -> None:
    shown = on_terminal(*args, **environment)[1]
    assert shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("environment", PLAIN_TERMINALS, ids=["no-color", "dumb"])
def test_long_work_writes_no_escape_either(
    used: Cli, place: Path, on_terminal: Terminal, environment: dict[str, str]
) -> None:
    for number in range(300):
        (place / f"{number}.txt").write_text(str(number))
    code, shown = on_terminal("checkpoint", **environment)
    assert code == 0
    assert "\x1b" not in shown
    assert ("reading files" in shown) == ("NO_COLOR" in environment)


@pytest.mark.parametrize("environment", POOR, ids=["latin-1", "ascii"])
@pytest.mark.parametrize("args", EVERY_LOOK, ids=" ".join)
def test_what_an_encoding_does_not_have_is_written_out(
    used: Cli, place: Path, args: list[str], environment: dict[str, str]
) -> None:
    done = _run(place, args, environment)
    assert done.returncode in (0, 30), done.stderr
    encoding = environment.get("PYTHONIOENCODING", "ascii")
    for text in (done.stdout.decode(encoding), done.stderr.decode(encoding)):
        assert "bug" not in text
        assert "\ufdd0" not in text, "a mark of our own"
        assert "sgr[" not in text, "a mark of our own"


@pytest.mark.parametrize("environment", POOR, ids=["latin-1", "ascii"])
def test_json_is_the_same_in_every_encoding(
    used: Cli, place: Path, environment: dict[str, str]
) -> None:
    done = _run(place, ["state", "get", "memory/text", "--json"], environment)
    assert json.loads(done.stdout.decode("ascii")) == WORDS


def test_text_that_is_none_in_this_locale_is_no_bug(used: Cli, place: Path) -> None:
    for args in (["state", "set", "memory/x", WORDS], ["checkpoint", "-m", WORDS]):
        done = _run(place, args, POOR[1])
        assert done.returncode not in (0, 70)
        assert b"Traceback" not in done.stderr
        assert b"bug" not in done.stderr


def test_our_own_signs_have_plain_ones() -> None:
    assert encodable("a → b… ✓", "ascii") == "a -> b... ok"
    assert encodable("Größe Ω", "latin-1") == "Größe \\u03a9"
    assert encodable("Größe Ω", "utf-8") == "Größe Ω"
    assert all(sign.isascii() for sign in PLAIN.values())


def _run(
    place: Path, args: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    unset = ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING")
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "mulligan", *(os.fsencode(arg) for arg in args)],
        cwd=place,
        env={**clean, "LC_ALL": "C.UTF-8", **environment},
        capture_output=True,
        check=False,
    )


def test_words_that_cannot_be_read_without_utf8_name_the_locale(store: Cli, place: Path) -> None:
    plain = {"PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONUTF8": "0"}
    words = [sys.executable, "-m", "mulligan", "checkpoint", "-m", "né"]
    done = subprocess.run(
        words, cwd=place, env={**os.environ, **plain}, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert b"LC_ALL=C.UTF-8" in done.stderr
    assert b"string-keyed" not in done.stderr
