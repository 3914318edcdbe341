"""A command starts fast because it imports only what it needs, and ends without a teardown."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mulligan.cli import overview
from mulligan.cli.deferred import Deferred, cleandoc
from tests.cli.conftest import Cli

ENTRY = """
import atexit, sys

def report():
    with open({report!r}, "w") as file:
        file.write("\\n".join(sys.modules))

atexit.register(report)
from mulligan.cli.entry import main
main()
"""
"""Starts a command as the console script does; an exit handler writes what was imported."""

HEAVY = {"blake3", "click", "inspect", "lmdb", "msgspec", "subprocess", "importlib.metadata"}

SLOW = {
    "ast",  # of the real inspect
    "asyncio",
    "concurrent.futures",
    "dataclasses",
    "difflib",
    "importlib.metadata",
    "ipaddress",  # of the real urllib.parse
    "json",
    "locale",  # of the real gettext
    "logging",
    "pathspec",
    "secrets",
    "shutil",
    "subprocess",
    "textwrap",  # of msgspec's schemas
    "tomllib",
    "unicodedata",
    "mulligan.check",
    "mulligan.journal.kv_transaction",
    "mulligan.journal.lmdb.compact",
    "mulligan.journal.lmdb.pages",
    "mulligan.journal.lmdb.write_lock",
    "mulligan.locate.git",
    "mulligan.objects.pack_space",
    "mulligan.objects.pack_writer",
    "mulligan.objects.scan",
    "mulligan.redact",
    "mulligan.session.comparer",
    "mulligan.session.parts.mailbox",
    "mulligan.session.parts.operations",
    "mulligan.session.runtime",
    "mulligan.session.tools",
    "mulligan.session.write.checkpointer",
    "mulligan.session.write.fork_directory",
    "mulligan.session.write.restorer",
    "mulligan.session.write.stored_files",
    "mulligan.supervisor.machine",
    "mulligan.upkeep.background",
    "mulligan.views.restores",
    "mulligan.workspace",
}
"""What takes time to import, and is of no use to a command that only looks."""

OF_RESTORES = {
    "mulligan.session.write.fork_directory",
    "mulligan.session.write.restorer",
    "mulligan.workspace.checkout.checkout",
    "mulligan.workspace.restore.apply",
    "mulligan.workspace.restore.protect",
    "mulligan.workspace.restore.swap",
}

OWN = {
    "context",
    "deferred",
    "entry",
    "fast_import",
    "main",
    "overview",
    "render",
    "render.streams",
    "render.terminal",
}
"""What of the command line is there before a command is known."""


def imported_by(directory: Path, *args: str, given: str = "", **settings: str) -> set[str]:
    """Return the modules that a process has imported at its end; ``given`` is its input."""
    report = directory / "modules"
    script = ENTRY.format(report=str(report))
    command = [sys.executable, "-c", script, *args]
    variables = {**os.environ, "COLUMNS": "80", **settings}
    subprocess.run(
        command,
        cwd=directory,
        env=variables,
        input=given,
        text=True,
        capture_output=True,
        check=True,
    )
    found = set(report.read_text().splitlines())
    report.unlink()
    return found


@pytest.mark.parametrize("args", overview.REQUESTS, ids=" ".join)
def test_the_help_imports_nothing_heavy(place: Path, args: list[str]) -> None:
    modules = imported_by(place, *args)
    assert not modules & {*HEAVY, "typing"}
    ours = {name for name in modules if name.startswith("mulligan.")}
    needed = ("cli", "cli.entry", "cli.overview", "cli.render", "cli.render.streams")
    assert ours == {f"mulligan.{name}" for name in needed}


def test_the_help_is_as_click_formats_it(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(overview.WIDTH))
    assert overview.text() == cli("--help").out == cli().out
    assert overview.text().isascii()  # any terminal can show it


@pytest.mark.parametrize("columns", ["40", "79"])
def test_a_narrow_terminal_gets_the_help_wrapped(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert not overview.is_wanted(["--help"])
    monkeypatch.setenv("COLUMNS", "80")
    assert overview.is_wanted(["--help"])


def test_only_the_bare_help_is_shown_without_click() -> None:
    assert not overview.is_wanted(["status", "--help"])
    assert not overview.is_wanted(["--version"])


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_of_the_library(place: Path, option: str) -> None:
    modules = imported_by(place, option, COLUMNS="60")
    library = {name for name in modules if name.startswith("mulligan.")}
    assert library == {"mulligan.cli", *(f"mulligan.cli.{name}" for name in OWN)}
    heavy = HEAVY - {"click", "inspect"}
    assert not modules & (heavy - {"importlib.metadata"} if option == "--version" else heavy)


@pytest.mark.parametrize("command", ["status", "log", "show", "tasks"])
def test_looking_imports_nothing_slow_that_it_does_not_need(store, place, command: str) -> None:
    imported_by(place, "checkpoint")
    modules = imported_by(place, command)
    assert modules & SLOW == set()
    assert "mulligan.session.session" in modules


def test_a_second_checkpoint_starts_no_program_and_imports_nothing_of_restores(
    store, place
) -> None:
    (place / "file").write_text("one")
    assert "subprocess" in imported_by(place, "checkpoint")  # the versions of tools are asked for
    (place / "file").write_text("two")
    modules = imported_by(place, "checkpoint")
    assert not modules & {"subprocess", "shutil", *OF_RESTORES}
    assert "mulligan.workspace.capture.capture" in modules


def test_a_checkpoint_without_files_imports_nothing_of_workspaces(store, place) -> None:
    modules = imported_by(place, "checkpoint", "--no-files")
    assert "mulligan.session.write.checkpointer" in modules
    assert not {name for name in modules if name.startswith("mulligan.workspace.capture")}


def test_a_hook_in_a_repository_imports_nothing_of_settings(place: Path, cli: Cli) -> None:
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    assert cli("install", "claude").code == 0
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(place)}
    given = json.dumps({**event, "prompt": "do it"})
    modules = imported_by(place, "hook", "claude", given=given)
    assert "mulligan.coding.recorder" in modules
    assert not modules & {"difflib", "json", "mulligan.coding.settings.settings_file"}


MOST_MODULES = 134
"""How many modules of ours, packages included, a command that looks may import; each takes time."""


@pytest.mark.parametrize("command", ["status", "log", "show", "tasks"])
def test_looking_imports_few_modules(store, place, command: str) -> None:
    imported_by(place, "checkpoint")
    ours = [name for name in imported_by(place, command) if name.startswith("mulligan.")]
    assert len(ours) <= MOST_MODULES, sorted(ours)


DEFERRED = """
import sys
from mulligan.cli import deferred, fast_import
deferred.defer()
fast_import.install()
import click, msgspec, pathlib, uuid
{then}
"""


@pytest.mark.parametrize(
    "then",
    [
        "import urllib.parse; assert urllib.parse.quote(' ') == '%20'",
        "assert pathlib.Path('/a b').as_uri() == 'file:///a%20b'",
        "import platform; assert platform.python_version() == sys.version.split()[0]",
        "import datetime, _datetime; assert datetime.datetime is _datetime.datetime",
        "import datetime; assert datetime.datetime.strptime('2026', '%Y').year == 2026",
        "import datetime; assert datetime.__name__ == 'datetime' and datetime.datetime_CAPI",
        "import gettext; assert gettext.NullTranslations().gettext('a') == 'a'",
        "assert msgspec.json.schema(int) == {'type': 'integer'}",
        "assert msgspec.inspect.type_info(int) == msgspec.inspect.IntType()",
        "assert msgspec.toml.decode('a = 1') == {'a': 1}",
        "assert uuid.uuid4().version == 4",
        "import datetime as d; assert msgspec.to_builtins(d.date(2026, 1, 2)) == '2026-01-02'",
    ],
)
def test_a_deferred_module_works_when_it_is_used(then: str) -> None:
    subprocess.run([sys.executable, "-c", DEFERRED.format(then=then)], check=True)


FOUND = """
import sys
from mulligan.cli import fast_import
fast_import.install()
import mulligan.timeline.times as module, importlib, importlib.util, mulligan.timeline
assert type(module.__loader__) is fast_import.Loader
assert module.__file__.endswith("times.py") and module.__package__ == "mulligan.timeline"
assert module.__cached__ == importlib.util.cache_from_source(module.__file__)
assert "Return a time" in module.__loader__.get_source(module.__name__)
assert type(mulligan.timeline.__loader__) is not fast_import.Loader
try:
    import mulligan.timeline.missing
except ModuleNotFoundError as error:
    assert error.name == "mulligan.timeline.missing"
else:
    raise AssertionError
"""


def test_modules_are_found_without_a_search_as_with_one() -> None:
    subprocess.run([sys.executable, "-c", FOUND], check=True)


def test_a_changed_source_is_imported_again(tmp_path: Path) -> None:
    package = tmp_path / "click"
    package.mkdir()
    (package / "__init__.py").touch()
    script = "from mulligan.cli import fast_import; fast_import.install(); import click.it; "
    command = [sys.executable, "-c", f"{script} print(click.it.value)"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    for value in ("1", "22", "22"):
        (package / "it.py").write_text(f"value = {value}\n")
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == value
    assert list((package / "__pycache__").glob("it.*.pyc"))


@pytest.mark.parametrize("doc", ["", " one ", "\n two\n   lines\n", "a\tb", "  \n"])
def test_the_deferred_inspect_cleans_as_the_real_one(doc: str) -> None:
    assert cleandoc(doc) == inspect.cleandoc(doc)


def test_the_deferred_inspect_becomes_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    deferred = Deferred("inspect", {"cleandoc": cleandoc})
    monkeypatch.setitem(sys.modules, "inspect", deferred)
    assert cleandoc("one line") == "one line"
    assert sys.modules["inspect"] is deferred
    assert deferred.isfunction(cleandoc)
    assert sys.modules["inspect"] is not deferred
    assert deferred.signature is sys.modules["inspect"].signature
    with pytest.raises(AttributeError):
        deferred.no_such_name  # noqa: B018 -- the access itself is what fails


LEAVES = """
import threading, time
from mulligan.cli.entry import leave
{before}
print("printed", end="")
leave(3)
"""


def test_leaving_flushes_and_has_the_exit_code() -> None:
    assert _left("") == (3, "printed")


def test_leaving_waits_for_a_thread_that_is_no_daemon() -> None:
    thread = (
        "go = threading.Event(); threading.Thread(target=lambda: (go.wait(), print('!'))).start()"
    )
    release = "import atexit; threading._register_atexit(go.set)"
    assert _left(f"{thread}\n{release}") == (3, "printed!\n")


def _left(before: str) -> tuple[int, str]:
    command = [sys.executable, "-c", LEAVES.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout
