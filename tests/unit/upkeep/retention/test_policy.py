"""The retention policy: its defaults, its file, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

import mulligan
from mulligan.config.tables import TableReader
from mulligan.errors import InvalidConfig
from mulligan.layout import CONFIG, locate
from mulligan.upkeep.retention.policy import (
    DAY,
    HOUR,
    KINDS,
    KNOWN_KINDS,
    THINNED,
    WEEK,
    Policy,
    Rules,
    parse_policy,
    read_policy,
    with_options,
)

WHOLE = """
[retention]
keep_last = 10
keep_within = "36h"
keep_hourly = 1
keep_daily = 2
keep_weekly = 3
keep_monthly = 4
keep_good = 5
keep_failed = "1d"
undo_window = "14d"
window = "12h"
quota = "10GB"

[retention.routine]
keep_last = 1

[retention.pre_operation]
keep_hourly = 0
keep_daily = 0

[retention.recovery]
keep_within = 0
keep_last = 2

[retention.manual]
keep_within = "90d"

[retention.kinds.nightly]
keep_all = true
"""


def parse(text: str) -> Policy:
    reader = TableReader(text, "config.toml", InvalidConfig)
    return parse_policy(tomllib.loads(text).get("retention", {}), reader)


def test_the_defaults() -> None:
    default = Policy()
    assert parse("") == default
    assert default.routine == Rules(keep_last=3, keep_hourly=24, keep_daily=7)
    assert default.pre_operation == default.routine
    assert default.recovery == Rules(keep_within=WEEK)
    assert default.manual == Rules(keep_all=True)
    assert default.general == Rules()
    assert (default.keep_good, default.undo_window, default.window) == (3, WEEK, DAY)
    assert default.quota is None


def test_everything_that_a_table_can_say() -> None:
    assert parse(WHOLE) == Policy(
        general=Rules(
            keep_last=10,
            keep_within=36 * HOUR,
            keep_hourly=1,
            keep_daily=2,
            keep_weekly=3,
            keep_monthly=4,
        ),
        routine=Rules(keep_last=1, keep_hourly=24, keep_daily=7),
        pre_operation=Rules(keep_last=3),
        recovery=Rules(keep_last=2),
        manual=Rules(keep_within=90 * DAY),
        kinds={"nightly": Rules(keep_all=True)},
        keep_good=5,
        keep_failed=DAY,
        undo_window=2 * WEEK,
        window=12 * HOUR,
        quota=10**10,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        WHOLE,
        "[retention]\nkeep_all = true",
        "[retention.manual]\nkeep_all = false",
        "[retention.routine]\nkeep_all = true",
    ],
)
def test_the_table_of_a_policy_is_read_back(text: str) -> None:
    policy = parse(text)
    table = policy.to_table()
    assert table
    assert parse_policy(table, TableReader("", "x", InvalidConfig)) == policy


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("[retention]\nkeep_lsat = 3", 2, "keep_lsat", "did you mean 'keep_last'?"),
        ("[retention.rutine]\nkeep_last = 3", 1, "rutine", "did you mean 'routine'?"),
        ("[retention.manual]\n\nkeep = 3", 3, "manual.keep", "no such key"),
        ("[retention]\nkeep_last = -1", 2, "keep_last", "a whole number of 0 or more, not -1"),
        ("[retention]\nkeep_last = '7d'", 2, "keep_last", "a whole number of 0 or more"),
        ("[retention]\nkeep_good = 1.5", 2, "keep_good", "a whole number of 0 or more"),
        ("[retention]\nkeep_within = '1 week'", 2, "keep_within", "is not a duration"),
        ("[retention]\nkeep_within = -3", 2, "keep_within", "more than 0"),
        ("[retention]\nwindow = 0", 2, "window", "more than 0"),
        ("[retention]\nquota = 0", 2, "quota", "more than 0"),
        ("[retention]\nquota = '10 gigs'", 2, "quota", "is not a size"),
        ("[retention]\nquota = 1.5", 2, "quota", "a size such as"),
        ("[retention]\nkeep_all = 1", 2, "keep_all", "true or false"),
        ("[retention]\nroutine = 3", 2, "routine", "this is a table"),
        ("[retention.kinds.routine]\nkeep_last = 3", 1, "kinds.routine", "[retention.routine]"),
        ("[retention.kinds.'a:b']\nkeep_last = 3", 1, "kinds.a:b", "contains ':'"),
        ("retention = 3", 1, None, "this is a table"),
    ],
)
def test_an_error_names_file_line_and_key(
    text: str, line: int, key: str | None, problem: str
) -> None:
    with pytest.raises(InvalidConfig) as failed:
        parse(text)
    place = f"retention.{key}" if key else "retention"
    assert str(failed.value).startswith(f"config.toml:{line}: {place}: ")
    assert problem in str(failed.value)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[retention.manual]\nkeep_last = 1\nkeep_all = true", 3, "manual.keep_all"),
        ("[retention]\nkeep_all = true\nkeep_last = 1", 2, "keep_all"),
        ("[retention]\nkeep_all = true\nquota = '1GB'", 3, "quota"),
        ("[retention]\nkeep_all = true\n[retention.routine]\nkeep_last = 1", 3, "routine"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(text: str, line: int, key: str) -> None:
    with pytest.raises(InvalidConfig, match="keep_all keeps every checkpoint") as failed:
        parse(text)
    assert str(failed.value).startswith(f"config.toml:{line}: retention.{key}: ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"general": {"keep_last": -1}},
        {"general": {"keep_within": -1.0}},
        {"general": {"keep_all": True, "keep_last": 1}},
        {"general": {"keep_all": True}, "quota": 1},
        {"keep_good": -1},
        {"keep_failed": -1.0},
        {"undo_window": -1.0},
        {"window": 0.0},
        {"quota": 0},
        {"kinds": {"manual": Rules()}},
    ],
    ids=str,
)
def test_a_program_cannot_make_such_a_policy_either(wrong: dict[str, object]) -> None:
    general = wrong.pop("general", {})
    assert isinstance(general, dict)
    with pytest.raises(ValueError, match=r"."):
        Policy(general=Rules(**general), **wrong)  # type: ignore[arg-type]


def test_a_limit_takes_the_place_of_keep_all_and_the_other_way_round() -> None:
    policy = parse("[retention.manual]\nkeep_last = 5\n[retention.routine]\nkeep_all = true")
    assert (policy.manual, policy.routine) == (Rules(keep_last=5), Rules(keep_all=True))


def test_a_kind_that_nobody_named_is_like_routine() -> None:
    policy = parse("[retention.routine]\nkeep_daily = 0\n[retention.kinds.nightly]\nkeep_last = 9")
    assert policy.rules_of("own") == ("routine", Rules(keep_last=3, keep_hourly=24))
    assert policy.rules_of("nightly")[0] == "kinds.nightly"
    assert policy.rules_of("nightly")[1].keep_last == 9
    for owned in ("langgraph", "agent-framework"):
        assert policy.rules_of(owned) == (f"kinds.{owned}", Rules(keep_all=True))
    # As for every kind whose default is to keep all: a limit takes its place, and nothing else.
    other = parse("[retention.kinds.langgraph]\nkeep_last = 9\n[retention.kinds.agent-framework]")
    assert other.rules_of("langgraph")[1] == Rules(keep_last=9)
    assert other.rules_of("agent-framework")[1] == Rules(keep_all=True)
    for kind in KINDS:
        assert policy.rules_of(kind) == (kind, getattr(policy, kind))


def test_prompts_of_coding_agents_have_rules_of_their_own() -> None:
    default = Rules(keep_last=20, keep_within=30 * DAY)
    assert parse("[retention.routine]\nkeep_last = 1").rules_of("prompt") == (
        "kinds.prompt",
        default,
    )
    policy = parse("[retention.kinds.prompt]\nkeep_last = 5\n[retention.kinds.own]\nkeep_last = 1")
    assert policy.rules_of("prompt")[1] == Rules(keep_last=5, keep_within=30 * DAY)


def test_checkpoints_after_tools_go_back_as_far_as_events() -> None:
    default = Rules(keep_last=3, keep_within=DAY, keep_hourly=24, keep_daily=7)
    assert parse("[retention.routine]\nkeep_last = 1").rules_of("tools") == (
        "kinds.tools",
        default,
    )
    assert default.keep_within == Policy().window
    policy = parse("[retention.kinds.tools]\nkeep_within = '3d'")
    assert policy.rules_of("tools")[1] == msgspec.structs.replace(default, keep_within=3 * DAY)


def test_rules_of_the_command_line_are_for_routine_pre_operation_and_kinds_of_your_own() -> None:
    text = "".join(f"[retention.kinds.{kind}]\nkeep_last = 9\n" for kind in (*KNOWN_KINDS, "own"))
    given = Rules(keep_last=1)
    for before in (Policy(), parse(text)):
        after = with_options(before, {"keep_last": 1}, {})
        for kind in ("routine", "pre_operation", "own", "other"):
            assert after.rules_of(kind)[1] == given
        for kind in ("recovery", "manual", *KNOWN_KINDS):
            assert after.rules_of(kind) == before.rules_of(kind)


def test_rules_in_words() -> None:
    assert str(THINNED) == "keep_last 3, keep_hourly 24, keep_daily 7"
    assert str(Rules(keep_within=36 * HOUR)) == "keep_within 36h"
    assert (str(Rules(keep_all=True)), str(Rules())) == ("keep_all", "")


def configure(directory: Path, text: str) -> Path:
    """Make a store with a configuration, and return its directory."""
    with mulligan.open(directory):
        pass
    store = locate(directory)
    (store / CONFIG).write_text(text)
    return store


def test_the_policy_of_a_store_is_in_its_configuration(tmp_path: Path) -> None:
    store = configure(tmp_path, "[workspace]\nbudget = 5\n[retention]\nkeep_last = 4\n")
    assert read_policy(store) == Policy(general=Rules(keep_last=4))
    (store / CONFIG).unlink()
    assert read_policy(store) == Policy()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[retention]\nkep_last = 4", "2: retention.kep_last: "),
        ("[retention]\nkeep_last = 4\n[workspace]\nbudgett = 1", "4: workspace.budgett: "),
        ("[workspace.snapshot]\nsqlite = 1", "2: workspace.snapshot.sqlite: "),
        ("[workspace.snapshot]\nsqlite = ['!']", "1: workspace.snapshot: "),
        (
            "[[workspace.snapshot.command]]\nfiles = ['a']\nrun = ['x']\n"
            "[[workspace.snapshot.command]]\nfiles = ['b']",
            "4: workspace.snapshot.command.1: ",
        ),
        ("[retentoin]\nkeep_last = 4", "1: retentoin: "),
        ("[workspace]\n\n[other]", "3: other: "),
        ("quota = 3", "1: quota: "),
    ],
)
def test_a_store_whose_configuration_has_an_unknown_key_is_not_opened(
    tmp_path: Path, text: str, where: str
) -> None:
    store = configure(tmp_path, text)
    with pytest.raises(InvalidConfig) as failed:
        mulligan.open(tmp_path)
    assert str(failed.value).startswith(f"{store / CONFIG}:{where}")


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    store = configure(tmp_path, "")
    (store / CONFIG).unlink()
    (store / CONFIG).mkdir()
    with pytest.raises(InvalidConfig, match=r"config\.toml cannot be read: Is a directory"):
        mulligan.open(tmp_path)
