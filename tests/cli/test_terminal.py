"""Nothing that came from outside commands the terminal: it is written out, wherever it appears."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import mulligan.cli
from mulligan.cli.main import COMMANDS
from mulligan.cli.render import terminal
from mulligan.cli.render.terminal import Visible, guarded, style, untouched, visible
from tests.cli.conftest import Cli, Result

TITLE = "\x1b]0;owned\x07"
EVIL = f"e{TITLE}\x1b[2J\x9b31m\u202e\u2066x"
"""Sets a title, clears the screen, and turns the direction of text."""


def assert_harmless(result: Result) -> None:
    for text in (result.out, result.err):
        found = [
            c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t"
        ]
        assert found == [], text


@pytest.fixture
def evil(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, object], None]
) -> Cli:
    """A store with such text wherever it can be: paths, contents, notes, values."""
    home = place / f"project{EVIL}"
    home.mkdir()
    monkeypatch.chdir(home)
    assert_harmless(cli("init"))
    assert_harmless(cli("init"))
    (home / f"file{EVIL}").write_text(f"one {EVIL}\n")
    (home / os.fsdecode(b"bytes\xff\x1b]0;x\x07")).write_text("one\n")
    (home / f"ignored{EVIL}").write_text("x")
    (home / ".mulliganignore").write_text(f"ignored*\n{EVIL}\n")
    for args in (
        ("state", "set", f"memory/key{EVIL}", json.dumps(EVIL)),
        ("state", "append", "conversation", json.dumps({"role": EVIL, "content": EVIL})),
        ("tasks", "add", EVIL, "--id", "job"),
        ("tasks", "fail", "job", EVIL),
        ("mail", "send", "coder", EVIL, EVIL),
        ("checkpoint", "-m", EVIL),
    ):
        assert_harmless(cli(*args))
    write("agents/coder", {"state": EVIL, "working_on": EVIL})
    (home / f"file{EVIL}").write_text(f"two {EVIL}\n")
    (home / f"new{EVIL}").mkdir()
    assert_harmless(cli("checkpoint", "-m", EVIL, "--label", "second"))
    assert_harmless(cli("mark", "second", "bad", "-m", EVIL))
    return cli


LOOKS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("log",),
    ("show",),
    ("events",),
    ("diff", "@latest~1", "@latest"),
    ("diff", "@latest~1", "--stat"),
    ("tasks",),
    ("mail",),
    ("mail", "receive", "--agent", "coder"),
    ("state", "get"),
    ("verify",),
    ("drill",),
    ("restore", "@latest~1", "--dry-run"),
    ("restore", "@latest~1", "--to", f"../copy{EVIL}"),
    ("fork", "@latest", "--to", f"../fork{EVIL}"),
    ("restore", "@latest~1"),
    ("undo",),
    ("redo",),
    ("resume", "--dry-run"),
    ("pause",),
    ("bisect", "--good", "@latest~2", "--bad", "@latest", "--", "sh", "-c", f"exit 1 # {EVIL}"),
    ("log",),
)


@pytest.mark.parametrize("mode", [(), ("--json",), ("--quiet",)], ids=["text", "json", "quiet"])
def test_no_command_prints_what_would_command_a_terminal(evil: Cli, mode: tuple[str, ...]) -> None:
    for args in LOOKS:
        at = args.index("--") if "--" in args else len(args)
        result = evil(*args[:at], *mode, *args[at:])
        assert_harmless(result)


@pytest.mark.parametrize(
    "args",
    [
        (EVIL,),
        ("--store", f"/nowhere/{EVIL}", "status"),
        ("log", f"--{EVIL}"),
        ("show", EVIL),
        ("log", "-s", EVIL),
        ("diff", EVIL, EVIL),
        ("restore", "@latest", "--only", EVIL),
        ("restore", EVIL),
        ("checkpoint", "--label", EVIL),
        ("checkpoint", "-k", EVIL),
        ("fork", "@latest", "--name", EVIL),
        ("mark", "@latest", EVIL),
        ("tasks", "complete", EVIL),
        ("mail", "ack", EVIL, "--agent", "coder"),
        ("state", "get", EVIL),
        ("state", "set", "memory/x", EVIL),
        ("up", f"{EVIL}.toml"),
        ("resume", EVIL),
        ("pause", "-s", EVIL),
        ("init", "-s", EVIL, "."),
        ("run", "--agent", EVIL, "--", f"/nowhere/{EVIL}"),
    ],
    ids=lambda args: (
        " ".join(word for word in args if word.isalnum() and word.isascii()) or "command"
    ),
)
@pytest.mark.parametrize("mode", [(), ("--json",)], ids=["text", "json"])
def test_no_failure_prints_what_would_command_a_terminal(
    evil: Cli, args: tuple[str, ...], mode: tuple[str, ...]
) -> None:
    at = args.index("--") if "--" in args else len(args)
    result = evil(*args[:at], *mode, *args[at:])
    assert_harmless(result)
    assert result.code != 70, result.err
    if mode and result.code:
        assert json.loads(result.err)["message"]


def test_json_holds_the_very_value(store: Cli) -> None:
    store("state", "set", "memory/x", json.dumps(EVIL))
    assert store("state", "get", "memory/x", "--json").json == EVIL


def test_a_raw_value_is_exact_for_a_program_that_reads_it(store: Cli) -> None:
    store("state", "set", "memory/x", json.dumps(EVIL))
    assert store("state", "get", "memory/x", "--raw").out == EVIL + "\n"


class Screen(io.StringIO):
    """A terminal to write to."""

    def isatty(self) -> bool:
        return True


def test_our_own_colours_show_on_a_terminal_and_those_of_data_do_not() -> None:
    screen, file = Screen(), io.StringIO()
    text = style(f"name \x1b[31m{terminal._END}", fg="green", bold=True)
    Visible(screen, colours=True).write(text)
    Visible(file, colours=False).write(text)
    assert screen.getvalue() == "\x1b[32m\x1b[1mname \\u001b[31m\\ufdd1\x1b[0m"
    assert file.getvalue() == "name \\u001b[31m\\ufdd1"


def test_what_agents_print_passes_as_it_is() -> None:
    screen = Screen()
    Visible(screen, colours=True).write(f"{style(EVIL, fg='red')} {untouched(EVIL)} {EVIL}\n")
    assert screen.getvalue() == f"\x1b[31m{visible(EVIL)}\x1b[0m {EVIL} {visible(EVIL)}\n"


def test_the_streams_are_as_before_when_a_command_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with guarded(colours=True):
        click.echo(EVIL)
        print(EVIL)
    assert sys.stdout is screen
    assert "\x1b" not in screen.getvalue()


def test_all_output_takes_this_way() -> None:
    """Escape sequences and styles of any other origin would be written out as text."""
    forbidden = re.compile(r"click\.(style|secho|clear|progressbar)\b|\\x1b|\\033|sys\.__std")
    directory = Path(mulligan.cli.__file__).parent
    found = [
        f"{file.name}: {node.lineno}"
        for file in directory.rglob("*.py")
        if file.name != "terminal.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.expr) and forbidden.search(ast.unparse(node))
    ]
    assert found == []
    assert {args[0] for args in LOOKS} <= COMMANDS.keys()


def test_a_name_in_brackets_is_no_markup(cli: Cli, on_terminal) -> None:
    assert cli("init", "--session", "[/b]").code == 0
    code, shown = on_terminal("verify")
    assert code == 0, shown
