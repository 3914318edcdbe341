"""On a terminal, lines are within its width; labels and reasons are shown in full."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mulligan.cli.render.log_lines import LogRow, fitted
from mulligan.cli.render.streams import wrap
from mulligan.cli.render.terminal import _MARK
from mulligan.cli.render.text import Cell, shorten
from tests.cli.conftest import PATIENCE, Cli

LABEL = "tests-green-after-the-refactoring-of-the-login"
NOTE = "before the refactoring of everything that has to do with logging in and out again"


def row(label: str = "", note: str = "", files: str = "12,345 files (1.2 GB)") -> LogRow:
    cells = ("0123456789ab", "#1234", "59m ago", "2026-11-15 10:00", "pre_operation", "good", files)
    return LogRow(tuple(map(Cell, cells)), Cell(label), Cell(note))


def plain(rows: list[LogRow], width: int | None) -> list[str]:
    lines = list(fitted(rows, width))
    return [re.sub(f"{_MARK}[^\ufdd1]*\ufdd1", "", line) for line in lines]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("label", ["", "short", LABEL])
@pytest.mark.parametrize("note", ["", "why", NOTE])
def test_lines_fit_and_labels_are_whole(width: int, label: str, note: str) -> None:
    lines = plain([row(label, note), row(files="")], width)
    assert all(len(line) <= max(width, 64) for line in lines)
    assert label in "\n".join(lines)
    assert note[:8] in "\n".join(lines)
    assert "2026-11-15 10:00" in lines[0]


def test_text_that_is_cut_twice_has_one_ellipsis() -> None:
    assert shorten(f"a={shorten('long value', 5)}  b=1", 8) == "a=long…"
    assert shorten("a=long…", 7) == "a=long…"


def test_a_label_that_is_wider_than_the_terminal_is_not_cut() -> None:
    label = "x" * 120
    assert plain([row(label, NOTE)], 80)[1].strip() == label


def test_without_a_terminal_everything_is_on_one_line() -> None:
    (line,) = plain([row(LABEL, NOTE)], None)
    assert line.endswith(f"12,345 files (1.2 GB)  {LABEL}  {NOTE}")
    assert plain([], None) == []


def test_the_log_in_80_columns(store: Cli, place: Path, on_terminal) -> None:
    (place / "a.txt").write_text("one")
    store("checkpoint", "-k", "pre_operation", "--label", LABEL, "-m", NOTE)
    store("checkpoint", "--label", "second")
    store("restore", LABEL)
    code, shown = on_terminal("log", COLUMNS="80", NO_COLOR="1")
    assert code == 0
    assert LABEL in shown
    assert "second" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_prune_in_80_columns_shows_every_reason(store: Cli, on_terminal) -> None:
    store("checkpoint", "--label", LABEL)
    code, shown = on_terminal("prune", "--dry-run", COLUMNS="80", NO_COLOR="1")
    assert code == 0
    assert f"The label '{LABEL}' names it." in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    lines = store("prune", "--dry-run").out.splitlines()
    assert any(line.endswith(f"The label '{LABEL}' names it.") for line in lines)


def test_the_status_in_80_columns(
    store: Cli, place: Path, tmp_path_factory: pytest.TempPathFactory, on_terminal
) -> None:
    (place / "a.txt").write_text("one")
    store("checkpoint")
    _, shown = on_terminal("status", COLUMNS="80", NO_COLOR="1")
    assert "forked from" not in shown  # a column without content
    directory = tmp_path_factory.mktemp("fork") / ("directory" * 5)
    assert store("fork", "@latest", "--name", "side", "--to", str(directory)).code == 0
    code, shown = on_terminal("status", COLUMNS="80", NO_COLOR="1")
    assert code == 0
    # The paths of the store and of the project have their own lines, and are never cut.
    lines = [line for line in shown.splitlines()[1:] if "files in" not in line]
    assert max(map(len, lines)) <= 80
    assert "side" in shown
    assert "forked from" in shown


def test_without_a_terminal_tables_have_80_columns_and_whole_paths(
    store: Cli, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("fork") / ("directory" * 12)
    store("checkpoint")
    assert store("fork", "@latest", "--name", "side" * 10, "--to", str(directory)).code == 0
    for command in (["status"], ["status", "--all"], ["stores"]):
        shown = store(*command).out
        # Only a path may be longer: it is never cut.
        too_long = [line for line in shown.splitlines() if len(line) > 80]
        assert [line.strip() for line in too_long if len(line.split()) > 1] == []
    assert str(directory) in store("status").out
    listed = store("stores").out
    assert all(one["store"] in listed for one in store("stores", "--json").json["stores"])


def test_a_command_is_not_broken() -> None:
    said = "Nothing is lost, and there is a way: `mulligan resume main --from POINT`, or so."
    assert wrap(said, 60, 2) == [
        "Nothing is lost, and there is a way:",
        "  `mulligan resume main --from POINT`, or so.",
    ]
    assert wrap("see `a command that is longer than the line`", 20, 2) == [
        "see",
        "  `a command that is",
        "  longer than the",
        "  line`",
    ]


def test_a_diff_in_80_columns(store: Cli, place: Path, on_terminal) -> None:
    path = place / "directory/of/some/files/that/are/rather/deep/in/a/tree/and/have/long/names.py"
    path.parent.mkdir(parents=True)
    path.write_text("one\n")
    store("state", "set", "context/goal", f"first {NOTE}")
    store("checkpoint", "--label", "first")
    path.write_text("two\n")
    store("state", "set", "context/goal", f"second {NOTE}")
    store("state", "set", "memory/new", NOTE)
    code, shown = on_terminal("diff", "first", "--stat", COLUMNS="80", NO_COLOR="1")
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert '"first before the' in shown
    assert '→ "second before' in shown
    assert "have/long/names.py  +1  -1" in shown
    assert str(path.relative_to(place)) in store("diff", "first", "--stat").out


def test_in_a_pipe_no_value_of_the_status_is_without_its_header(store: Cli) -> None:
    name = f"claude-{'0' * 36}"
    assert store("checkpoint", "-s", name, "--create").code == 0
    lines = store("status").out.splitlines()
    assert [line.rstrip()[-7:] for line in lines if line[2:].startswith(name)][:1] == ["  never"]


def test_the_status_of_many_sessions_is_short(store: Cli, process) -> None:
    failed = process("run", "-q", "-s", "failed-first", "--restart", "never", "--", "false")
    assert failed.wait(PATIENCE) == 1
    for number in range(12):
        store("checkpoint", "-s", f"old-{number}", "--create")
    shown = store("status").out
    assert "failed-first " in shown
    assert "old-11 " in shown
    assert "old-2 " not in shown
    assert "and 4 older sessions: `mulligan status --all`" in shown
    assert "old-2 " in store("status", "--all").out
    assert len(store("status", "--json").json["sessions"]) == 14


def test_an_error_is_broken_between_words(store: Cli, on_terminal) -> None:
    code, shown = on_terminal("help", "nowhere", COLUMNS="80", NO_COLOR="1")
    assert code == 2
    assert len(shown.splitlines()) > 2
    assert max(map(len, shown.splitlines())) <= 80
    one_line, *_ = store("help", "nowhere").err.splitlines()
    assert one_line in " ".join(shown.split())


def test_the_usage_of_sessions_with_long_names_in_80_columns(store: Cli, on_terminal) -> None:
    name = "claude-f17630ec-85d7-4099-b187-0aa681998669"
    store("checkpoint", "-s", name, "--create")
    code, shown = on_terminal("du", COLUMNS="80", NO_COLOR="1")
    assert code == 0
    assert f"  {name}  " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_terminal_needs_no_slow_import(store: Cli, on_terminal) -> None:
    store("checkpoint")
    code, shown = on_terminal("log", COLUMNS="80", PYTHONPROFILEIMPORTTIME="1")
    assert code == 0
    imported = {line.split("|")[-1].strip() for line in shown.splitlines() if "|" in line}
    assert "mulligan.cli.render.log" in imported
    assert "shutil" not in imported


def test_a_warning_of_another_session_is_in_80_columns(
    store: Cli, place: Path, on_terminal
) -> None:
    (place / "a.txt").write_text("one")
    store("checkpoint", "--label", "one")
    (place / "a.txt").write_text("two")
    store("checkpoint", "-s", LABEL, "--create")
    _, shown = on_terminal("restore", "one", "--dry-run", COLUMNS="80", NO_COLOR="1")
    assert f"Warning: session '{LABEL}' changed 1 path after that" in " ".join(shown.split())
    warning = shown[shown.index("Warning") :]
    assert max(map(len, warning.splitlines())) <= 80
