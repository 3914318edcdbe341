"""docs/cli-json.md, the help and the program say the same."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import click
import pytest

import mulligan
from mulligan.cli.main import COMMANDS
from tests.contract import documented, section

ROOT = Path(__file__).parents[2]


def leaves(name: str) -> list[str]:
    """Return a command, or the commands of a command."""
    command = importlib.import_module(f"mulligan.cli.commands.{name.replace('-', '_')}").command
    is_group = isinstance(command, click.Group)
    return [f"{name} {leaf}" for leaf in command.commands] if is_group else [name]


LEAVES = [leaf for name in COMMANDS for leaf in leaves(name)]


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_is_in_the_contract(name: str):
    assert section(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module_help_and_example(name: str):
    command: click.Command = importlib.import_module(
        f"mulligan.cli.commands.{name.replace('-', '_')}"
    ).command
    leaves = command.commands.values() if isinstance(command, click.Group) else [command]
    for leaf in leaves:
        assert leaf.help
        assert "Example:\n  mulligan" in (leaf.epilog or "")


def test_the_help_lists_every_command(cli):
    said = cli("--help").out
    for name, short_help in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(short_help)}$", said, re.M)


def test_every_module_of_a_command_is_in_the_table():
    modules = (ROOT / "src/mulligan/cli/commands").glob("[!_]*.py")
    commands = [module.stem.replace("_", "-") for module in modules]
    assert sorted(commands) == sorted(COMMANDS)


def test_the_readme_lists_every_command():
    readme = (ROOT / "README.md").read_text()
    if "| command |" not in readme:
        pytest.skip("the README has no table of commands yet")
    missing = [name for name in COMMANDS if not re.search(rf"^\|.*`{name}\b", readme, re.M)]
    assert missing == []


def test_every_error_class_is_in_the_table_of_exit_codes():
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", section("Errors"), re.M)
    listed = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    actual = {name: c.exit_code for name, c in vars(mulligan.errors).items() if _is_error(c)}
    assert {name: listed.get(name) for name in actual} == actual


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, mulligan.MulliganError)


@pytest.fixture
def used(store, place: Path):
    """A store in which every command has something to say."""
    store("state", "set", "memory/goal", "first")
    (place / "a.txt").write_text("one\n")
    store("checkpoint", "--label", "one")
    store("state", "set", "memory/goal", "second")
    (place / "a.txt").write_text("two\n")
    store("tasks", "add", "First")
    store("mail", "send", "cli", "Hello", "--id", "m1", "--ack")
    return store


@pytest.mark.parametrize(
    ("title", "args"),
    [
        ("init", ["init"]),
        ("log", ["log"]),
        ("show", ["show"]),
        ("events", ["events", "-n", "1"]),
        ("status", ["status"]),
        ("diff", ["diff", "one"]),
        ("restore", ["restore", "one"]),
        ("restore", ["restore", "one", "--dry-run"]),
        ("restore", ["restore", "one", "--to", "copy"]),
        ("fork", ["fork", "one"]),
        ("purge", ["purge", "nowhere", "--dry-run"]),
        ("du", ["du"]),
        ("verify", ["verify"]),
        ("drill", ["drill"]),
        ("stores", ["stores"]),
        ("move-store", ["move-store"]),
        ("state set", ["state", "set", "a", "1"]),
        ("state append", ["state", "append", "a", "1"]),
        ("state delete", ["state", "delete", "memory"]),
        ("resume", ["resume"]),
        ("resume", ["resume", "--rollback", "main"]),
        ("resume", ["resume", "--from", "one", "--dry-run", "main"]),
        ("A checkpoint", ["checkpoint"]),
        ("tasks list", ["tasks"]),
        ("tasks list", ["tasks", "list"]),
        ("A task", ["tasks", "add", "Write it"]),
        ("A task", ["tasks", "claim"]),
        ("A task", ["tasks", "complete", "first"]),
        ("A task", ["tasks", "fail", "first", "why"]),
        ("A task", ["tasks", "skip", "first"]),
        ("mail list", ["mail"]),
        ("mail send", ["mail", "send", "cli", "Hello"]),
        ("A message", ["mail", "receive"]),
        ("mail ack", ["mail", "ack", "m1"]),
        ("A checkpoint", ["mark", "one", "good"]),
        ("effects list", ["effects"]),
        ("effects list", ["effects", "list", "--pending"]),
        ("tools list", ["tools"]),
        ("tools list", ["tools", "list", "--failed"]),
        ("label", ["label"]),
        ("label", ["label", "--drop", "one"]),
    ],
)
def test_the_fields_are_the_documented_ones(used, title: str, args: list[str]):
    assert set(used(*args, "--json").json) == documented(title)


def test_the_fields_of_a_tool_call(used):
    assert set(used("exec", "--json", "--", "true").json) == documented("A tool call")
    [call] = used("tools", "--json").json["calls"]
    assert set(call) == documented("A tool call")


def test_the_fields_of_an_effect(used, place: Path):
    session = mulligan.open(place).session("main")
    session.effects.rule("*", approval="ask")
    for key, answer in (("1", "approve"), ("2", "deny")):
        with pytest.raises(mulligan.errors.ApprovalPending), session.effect("deploy", key=key):
            raise AssertionError
        [waiting] = used("effects", "--pending", "--json").json["effects"]
        assert set(waiting) == documented("An effect")
        assert set(used(answer, waiting["id"], "--json").json) == documented("An effect")
    fields = {"at", "expires", "by", "answered", "note"}
    assert set(waiting["question"]) == fields
    assert all(f"`{field}`" in section("An effect") for field in fields)


def test_the_fields_of_bisect(used):
    used("checkpoint", "--label", "two")
    check = ["--", "grep", "-q", "one", "a.txt"]
    done = used("bisect", "--good", "one", "--bad", "two", "--json", *check)
    assert set(done.json) == documented("bisect")


def test_the_fields_of_undo_and_redo(used):
    used("restore", "one")
    for name in ("undo", "redo"):
        assert set(used(name, "--dry-run", "--json").json) == documented(name)
        assert set(used(name, "--json").json) == documented(name)


def test_the_fields_inside(used):
    assert set(used("diff", "one", "--json").json["before"]) == documented("A point")
    differences = used("diff", "one", "--json").json["state"]
    (changed,) = [found for found in differences if found["change"] == "changed"]
    assert set(changed) == documented("A difference")
    (file,) = used("diff", "one", "--json").json["files"]
    assert set(file) == documented("A file change")
    coverage = used("show", "--json").json["coverage"]
    assert all(f"`{field}`" in section("show") for field in coverage)
    assert all(set(left) == {"path", "rule"} for left in coverage["left_out"])
    entry = used("log", "--json").json["entries"][0]
    assert set(entry) == documented("A checkpoint") | {"type", "label_at"}
    (session,) = used("status", "--json").json["sessions"]
    assert all(f"`{field}`" in section("status") for field in session)
    assert set(session["checkpoint"]) == documented("A checkpoint")


def test_the_fields_of_a_failure(used):
    failed = json.loads(used("show", "nowhere", "--json").err)
    assert set(failed) == documented("Errors")


@pytest.mark.parametrize("name", LEAVES)
def test_json_and_session_are_taken_on_either_side(name: str):
    module = importlib.import_module(f"mulligan.cli.commands.{name.split()[0].replace('-', '_')}")
    command = module.command
    if isinstance(command, click.Group):
        command = command.commands[name.split()[1]]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--quiet", "-q", "--session", "-s", "--store"} <= options
