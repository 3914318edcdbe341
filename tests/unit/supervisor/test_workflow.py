"""Workflow files: what they say, and the errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.errors import InvalidWorkflow
from mulligan.redact import HIDDEN, without_secrets
from mulligan.supervisor.workflow import (
    AgentSpec,
    Backoff,
    Workflow,
    from_plain,
    load,
    parse,
)
from mulligan.upkeep.retention.policy import Policy, Rules

WHOLE = """
session = "nightly"
workspace = "work"
checkpoint_interval = "10m"

[retention]
keep_last = 10
keep_within = "7d"

[agents.planner]
command = "python 'my planner.py' --fast"
prompt = "@prompt.md"

[agents.coder]
command = ["python", "coder.py"]
directory = "src"
env = { MODE = "fast" }
pass_env = ["API_KEY"]
prompt = "write the code"
after = ["planner"]
restart = "always"
max_restarts = 3
within = 30
backoff = { initial = "100ms", factor = 3, max = "10s" }
heartbeat = "5s"
progress = "2m"
checkpoint_interval = "1m"
health = "make check"
health_interval = "1h"
"""


def test_everything_that_a_workflow_can_say(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("plan the work")
    file = tmp_path / "team.toml"
    file.write_text(WHOLE)
    assert load(file) == Workflow(
        session="nightly",
        workspace=str(tmp_path / "work"),
        checkpoint_interval=600,
        retention=Policy(general=Rules(keep_last=10, keep_within=7 * 86400)),
        file=str(file),
        agents={
            "planner": AgentSpec(
                command=("python", "my planner.py", "--fast"),
                directory=str(tmp_path / "work"),
                prompt="plan the work",
            ),
            "coder": AgentSpec(
                command=("python", "coder.py"),
                directory=str(tmp_path / "work/src"),
                env={"MODE": "fast"},
                pass_env=("API_KEY",),
                prompt="write the code",
                after=("planner",),
                restart="always",
                max_restarts=3,
                within=30,
                backoff=Backoff(0.1, 3, 10),
                heartbeat=5,
                progress=120,
                checkpoint_interval=60,
                health=("make", "check"),
                health_interval=3600,
            ),
        },
    )


def test_what_is_not_said_has_a_default() -> None:
    workflow = parse('[agents.a]\ncommand = "x"', Path("/w/team.toml"))
    assert (workflow.session, workflow.workspace, workflow.checkpoint_interval) == (
        "main",
        None,
        300,
    )
    agent = workflow.agents["a"]
    assert (agent.directory, agent.restart, agent.max_restarts, agent.within) == (
        "/w",
        "on_failure",
        5,
        60,
    )


def test_an_agent_can_have_its_own_interval_of_checkpoints() -> None:
    agents = {
        "a": AgentSpec(command=("x",), checkpoint_interval=60),
        "b": AgentSpec(command=("x",)),
    }
    workflow = Workflow(agents=agents, checkpoint_interval=600)
    assert (
        workflow.checkpoint_interval_of("a"),
        workflow.checkpoint_interval_of("b"),
        workflow.shortest,
    ) == (60, 600, 60)


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("", 1, "agents", "a workflow needs at least one"),
        ('[agents.a]\ncommand = "x"\n\nnonsense = 1', 4, "agents.a.nonsense", "no such key"),
        ('[agents.a]\ncomand = "x"', 2, "agents.a.comand", "did you mean 'command'?"),
        ("[agents.a]\nprompt = 'x'", 1, "agents.a", "needs a command"),
        ("[agents.a]\ncommand = ''", 2, "agents.a.command", "names a program"),
        ("[agents.a]\ncommand = [1]", 2, "agents.a.command", "a list of texts"),
        ("[agents.a]\ncommand = 'x \"y'", 2, "agents.a.command", "No closing quotation"),
        (
            'checkpoint_interval = "5 parsecs"\n[agents.a]',
            1,
            "checkpoint_interval",
            "is not a duration",
        ),
        ("checkpoint_interval = 0\n[agents.a]", 1, "checkpoint_interval", "more than 0"),
        ('[agents.a]\ncommand = "x"\nrestart = "often"', 3, "agents.a.restart", "one of"),
        ('[agents.a]\ncommand = "x"\nafter = ["b"]', 3, "agents.a.after", "no agent 'b'"),
        ('[agents.a]\ncommand = "x"\nafter = ["a"]', 3, "agents.a.after", "wait for itself"),
        (
            '[agents.a]\ncommand = "x"\n[agents.b]\ncommand = "x"\nafter = ["c"]\n'
            '[agents.c]\ncommand = "x"\nafter = ["b"]',
            5,
            "agents.b.after",
            "wait for itself",
        ),
        (
            '[agents.a]\ncommand = "x"\nrestart = "always"\n'
            '[agents.b]\ncommand = "x"\nafter = ["a"]',
            6,
            "agents.b.after",
            "is never done",
        ),
        (
            '[agents.a]\ncommand = "x"\n[agents.a.backoff]\nfactor = 0',
            4,
            "agents.a.backoff.factor",
            "from 1 to 100",
        ),
        ('[agents.a]\ncommand = "x"\nenv = {A = 1}', 3, "agents.a.env.A", "is a text"),
        (
            '[agents.a]\ncommand = "x"\n[agents.a.env]\nA = "1"\nB = 2',
            5,
            "agents.a.env.B",
            "is a text",
        ),
        ('[agents.a]\ncommand = "x"\nenv = 1', 3, "agents.a.env", "is a table"),
        ('[agents.a]\ncommand = "x"\nprompt = "@none"', 3, "agents.a.prompt", "No such file"),
        (
            '[agents.a]\ncommand = "x"\nmax_restarts = -1',
            3,
            "agents.a.max_restarts",
            "of 0 or more",
        ),
        ('[agents."a:b"]\ncommand = "x"', 1, "agents.a:b", "contains ':'"),
        (
            '[agents.supervisor]\ncommand = "x"',
            1,
            "agents.supervisor",
            "the name of the supervisor",
        ),
        ('[retention]\nkeep = 1\n[agents.a]\ncommand = "x"', 2, "retention.keep", "no such key"),
        (
            '[agents.a]\ncommand = "x"\n[retention.routine]\nkeep_within = "x"',
            4,
            "retention.routine.keep_within",
            "is not a duration",
        ),
        ("retention = 1\n[agents.a]", 1, "retention", "this is a table"),
        ('session = "@x"\n[agents.a]\ncommand = "x"', 1, "session", "starts with '@'"),
        ('agents = "x"', 1, "agents", "this is a table"),
        ("[agents]\na = 1", 2, "agents.a", "this is a table"),
        ("session = 3\n[agents.a]", 1, "session", "this is a text, not 3"),
        ("checkpoint_interval = true\n[agents.a]", 1, "checkpoint_interval", "a duration"),
        ('[agents.a]\ncommand = "x"\nmax_restarts = true', 3, "agents.a.max_restarts", "number"),
        ('[agents.a]\ncommand = "x"\nwithin = [1]', 3, "agents.a.within", "a duration"),
        ('[agents.a]\ncommand = "x"\nafter = "b"', 3, "agents.a.after", "a list of texts"),
        ('[agents.a]\ncommand = "x"\nbackoff = {max = 0}', 3, "agents.a.backoff.max", "more than"),
        ('every = "5m"\n[agents.a]', 1, "every", "did you mean 'checkpoint_interval'?"),
    ],
)
def test_an_error_names_file_line_and_key(
    tmp_path: Path, text: str, line: int, key: str, problem: str
) -> None:
    with pytest.raises(InvalidWorkflow) as failed:
        parse(text, tmp_path / "team.toml")
    assert str(failed.value).startswith(f"{tmp_path}/team.toml:{line}: {key}: ")
    assert problem in str(failed.value)


def test_an_error_of_syntax_names_the_line() -> None:
    with pytest.raises(InvalidWorkflow, match=r"team\.toml: .*line 2"):
        parse("session = 'x'\nevery = = 1", Path("team.toml"))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidWorkflow, match=r"toml cannot be read: No such file or directory"):
        load(Path("/nowhere/team.toml"))


def test_the_state_holds_the_workflow_without_secrets() -> None:
    workflow = Workflow(
        agents={
            "a": AgentSpec(
                command=("agent", "--fast"),
                env={"MODE": "fast", "API_KEY": "x", "URL": "postgres://me:pass@host/db"},
                pass_env=("HOME_TOWN",),
            )
        }
    )
    plain = workflow.to_plain()
    assert plain["agents"]["a"]["env"] == {"MODE": "fast"}
    back = from_plain(plain)
    assert back.agents["a"].pass_env == ("API_KEY", "HOME_TOWN", "URL")
    assert back.agents["a"].command == workflow.agents["a"].command
    assert workflow.agents["a"].env["API_KEY"] == "x"


def test_a_secret_in_a_command_is_hidden_and_cannot_be_resumed() -> None:
    secret = "sk-" + "a" * 30
    workflow = Workflow(agents={"a": AgentSpec(command=("agent", f"--key={secret}"))})
    plain = workflow.to_plain()
    assert plain["agents"]["a"]["command"] == ["agent", HIDDEN]
    with pytest.raises(InvalidWorkflow, match="held a secret"):
        from_plain(plain)


@pytest.mark.parametrize(
    "command",
    [
        ["agent", "--password", "hunter2"],
        ["agent", "--password", "1234"],
        ["agent", "--api-key=abc"],
        ["env", "DB_PASSWORD=hunter2"],
        ["curl", "Authorization: Bearer abc"],
        ["curl", "X-Api-Key: abc"],
        ["sh", "TOKEN=abc exec agent"],
        ["sh", "exec agent --token abc --fast"],
        ["sh", "curl -H 'Authorization: Bearer abc' example.org"],
    ],
    ids=" ".join,
)
def test_what_is_called_a_secret_is_hidden(command: list[str]) -> None:
    hidden = without_secrets(command)
    assert hidden[-1] == HIDDEN
    assert hidden[:-1] == command[:-1]


@pytest.mark.parametrize(
    "command",
    [
        ["agent", "--max-tokens", "4096"],
        ["agent", "--tokens=100"],
        ["agent", "--api-key-env", "OPENAI_API_KEY"],
        ["agent", "--token-file=token.txt"],
        ["agent", "--no-auth", "main.py"],
        ["agent", "--auth", "--fast"],
        ["git", "--author", "me"],
        ["sh", 'exec agent --token "$TOKEN"'],
        ["sh", "TOKEN=$OTHER exec agent"],
        ["sh", 'curl -H "Authorization: Bearer $TOKEN" example.org'],
        ["python", "print(sorted('b a', key=len), token=1)"],
        ["python", "pass the test"],
    ],
    ids=" ".join,
)
def test_what_only_sounds_like_a_secret_is_kept(command: list[str]) -> None:
    assert without_secrets(command) == command


def test_a_health_command_with_a_secret_is_left_out_when_resumed() -> None:
    spec = AgentSpec(command=("agent",), health=("check", "--password", "x"), health_interval=5)
    plain = Workflow(agents={"a": spec, "b": AgentSpec(command=("b",), health=("ok",))}).to_plain()
    assert plain["agents"]["a"]["health"] == ["check", "--password", HIDDEN]
    agents = from_plain(plain).agents
    assert (agents["a"].health, agents["b"].health) == (None, ("ok",))


@pytest.mark.parametrize("plain", [None, [], {}, {"agents": {"a": {"command": 3}}}])
def test_a_state_that_holds_no_workflow(plain: object) -> None:
    with pytest.raises(InvalidWorkflow, match="cannot be used"):
        from_plain(plain)


def test_a_workflow_that_a_session_kept_under_older_names_is_read() -> None:
    workflow = Workflow(agents={"a": AgentSpec(command=("x",), checkpoint_interval=60)})
    plain = workflow.to_plain()
    plain["every"] = plain.pop("checkpoint_interval")
    plain["agents"]["a"]["every"] = plain["agents"]["a"].pop("checkpoint_interval")
    assert from_plain(plain) == workflow


def test_the_policy_of_a_workflow_is_kept_in_the_state() -> None:
    agents = {"a": AgentSpec(command=("x",))}
    policies = [
        None,
        Policy(),
        Policy(general=Rules(keep_all=True)),
        Policy(
            manual=Rules(keep_last=5),
            routine=Rules(),
            recovery=Rules(keep_all=True),
            kinds={"nightly": Rules(keep_weekly=4)},
            keep_good=0,
            quota=10**9,
        ),
    ]
    for policy in policies:
        workflow = Workflow(agents=agents, retention=policy)
        plain = workflow.to_plain()
        assert isinstance(plain["retention"], dict)  # as every earlier version expects
        assert from_plain(plain) == workflow


@pytest.mark.parametrize(
    ("kept", "policy"),
    [
        ({}, None),
        (
            {"keep_last": 10, "keep_within": "7d"},
            Policy(general=Rules(keep_last=10, keep_within=7 * 86400)),
        ),
        ({"anything": 3}, None),
        ({"keep_last": "7d"}, None),
        (3, None),
    ],
)
def test_no_resume_is_refused_for_a_retention_that_an_earlier_version_kept(
    kept: object, policy: Policy | None
) -> None:
    plain = Workflow(agents={"a": AgentSpec(command=("x",))}).to_plain()
    assert from_plain({**plain, "retention": kept}).retention == policy


def test_the_drift_settings_of_a_workflow_are_kept_in_the_state(tmp_path: Path) -> None:
    text = '[drift]\nsame_result = 7\noff = ["age"]\n[drift.ladder]\nrefresh = 1\n'
    made = parse(text + '[agents.a]\ncommand = "x"\n', tmp_path / "team.toml")
    assert made.drift is not None
    assert (made.drift.same_result, made.drift.ladder.refresh) == (7, 1)
    assert from_plain(made.to_plain()).drift == made.drift
    plain = parse('[agents.a]\ncommand = "x"\n', tmp_path / "team.toml")
    assert from_plain(plain.to_plain()).drift is None


def test_a_mistake_in_the_drift_settings_is_named_with_its_line(tmp_path: Path) -> None:
    text = '[agents.a]\ncommand = "x"\n[drift]\nsame_resultt = 7\n'
    with pytest.raises(InvalidWorkflow, match=r"team.toml:4: drift.same_resultt: .*'same_result'"):
        parse(text, tmp_path / "team.toml")


def test_drift_settings_of_a_later_version_do_not_stop_a_resume() -> None:
    made = Workflow(agents={"a": AgentSpec(command=("x",))}).to_plain()
    assert from_plain({**made, "drift": {"telepathy": 3}}).drift is None
