"""Workflows: which agents run, how, and what happens when they fail.

A workflow comes from a TOML file (``load``), from a command line, or from the state of a session
that is to be resumed (``from_plain``). It never carries a secret into the state (``to_plain``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from mulligan.config.tables import Count, Duration, Place, TableReader, Text, described
from mulligan.config.text import read_text
from mulligan.decoding import ready
from mulligan.drift.settings import TABLE as DRIFT
from mulligan.drift.settings import DriftSettings
from mulligan.errors import InvalidName, InvalidWorkflow
from mulligan.redact import HIDDEN, is_secret, without_secrets
from mulligan.session.names import SUPERVISOR, check_agent, check_name
from mulligan.upkeep.retention.policy import TABLE, Policy, parse_policy
from mulligan.upkeep.verify.settings import TABLE as VERIFY_TABLE
from mulligan.upkeep.verify.settings import VerifySettings, parse_verify

ON_FAILURE = "on_failure"
ALWAYS = "always"
NEVER = "never"
RESTARTS = (ON_FAILURE, ALWAYS, NEVER)

CHECKPOINT_INTERVAL_SECONDS = 300.0
"""Seconds between routine checkpoints by default."""

DRILL_TIMEOUT_SECONDS = 60.0
"""Seconds after which a command of a drill has failed, by default."""

RENAMED = {"every": "checkpoint_interval", "health_every": "health_interval"}
"""Keys that were renamed: refused by name in a file, but read from the state of a session."""


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait before a restart; the first one after a stable period is not delayed."""

    initial: float = 0.5
    factor: float = 2.0
    max: float = 30.0


class DrillSettings(msgspec.Struct, frozen=True):
    """When drills are run, if they are, and how long each of their commands may take."""

    every: float | None = None
    timeout: float = DRILL_TIMEOUT_SECONDS


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One agent: how it is started, and what is done when it ends or hangs.

    A task is given up once it has ended ``quarantine_after`` of its processes.
    ``checkpoint_interval`` is the time between routine checkpoints; None for that of the team.
    ``drill`` starts the agent in a dry mode, on the files of a drill. ``again`` is the command of
    every start but the first, for programs that continue by other arguments.
    """

    command: tuple[str, ...]
    again: tuple[str, ...] | None = None
    directory: str | None = None
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    prompt: str | None = None
    after: tuple[str, ...] = ()
    restart: str = ON_FAILURE
    max_restarts: int = 5
    within: float = 60.0
    quarantine_after: int = 3
    backoff: Backoff = Backoff()
    heartbeat: float | None = None
    progress: float | None = None
    checkpoint_interval: float | None = None
    health: tuple[str, ...] | None = None
    health_interval: float | None = None
    drill: tuple[str, ...] | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """A team of agents on one session.

    Without a ``retention``, ``verify`` or ``drift``, those of the store apply.
    """

    agents: dict[str, AgentSpec]
    session: str = "main"
    workspace: str | None = None
    checkpoint_interval: float = CHECKPOINT_INTERVAL_SECONDS
    watch: bool = False
    """Whether a checkpoint is also taken when files have changed and then stayed as they are."""
    retention: Policy | None = None
    drill: DrillSettings = DrillSettings()
    drift: DriftSettings | None = None
    verify: VerifySettings | None = None
    file: str | None = None

    @property
    def shortest(self) -> float:
        """Seconds between routine checkpoints of the team: the shortest interval of its agents."""
        return min(map(self.checkpoint_interval_of, self.agents), default=self.checkpoint_interval)

    def checkpoint_interval_of(self, agent: str) -> float:
        """Return the seconds between routine checkpoints of an agent."""
        return self.agents[agent].checkpoint_interval or self.checkpoint_interval

    def to_plain(self) -> dict[str, Any]:
        """Return the workflow for the state, without what looks like a secret.

        Such a variable is named in ``pass_env`` instead, and has to be set when the session is
        resumed.
        """
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        plain[TABLE] = self.retention.to_table() if self.retention else {}
        plain[DRIFT] = self.drift.to_table() if self.drift else {}
        for agent in plain["agents"].values():
            secret = {name for name, value in agent["env"].items() if is_secret(name, value)}
            agent["env"] = {n: value for n, value in agent["env"].items() if n not in secret}
            agent["pass_env"] = sorted({*agent["pass_env"], *secret})
            for key in ("command", "again", "health", "drill"):
                agent[key] = agent[key] and without_secrets(agent[key])
        return plain


def from_plain(plain: Any) -> Workflow:
    """Return the workflow that ``to_plain`` put into the state; raises ``InvalidWorkflow``."""
    try:
        workflow = msgspec.convert(_with_policy(_with_new_keys(plain)), ready(Workflow))
    except msgspec.ValidationError as error:
        raise InvalidWorkflow(f"The workflow in the state cannot be used: {error}.") from error
    for name, agent in workflow.agents.items():
        if HIDDEN in (*agent.command, *(agent.again or ())):
            raise InvalidWorkflow(
                f"The command of {name!r} held a secret, which was not kept.",
                hint="Start it again as it was started; better: pass secrets as variables.",
            )
    agents = {name: _without_broken_checks(agent) for name, agent in workflow.agents.items()}
    return msgspec.structs.replace(workflow, agents=agents)


def _with_new_keys(plain: Any) -> Any:
    """Return a workflow from the state, with the present names of its keys."""
    if not isinstance(plain, dict):
        return plain
    named = {RENAMED.get(key, key): value for key, value in plain.items()}
    agents = named.get("agents")
    if isinstance(agents, dict):
        named["agents"] = {name: _with_new_keys(agent) for name, agent in agents.items()}
    return named


def _with_policy(plain: Any) -> Any:
    """Return a workflow from the state, with its settings in place of the tables.

    Earlier versions stored any keys there and used none. Such a table does not prevent a resume:
    the policy of the store applies, as without one.
    """
    if not isinstance(plain, dict):
        return plain
    reader = TableReader("", "the state", InvalidWorkflow)
    try:
        policy = _policy(plain.get(TABLE, {}), reader)
    except InvalidWorkflow:
        policy = None
    try:
        drift = _drift(plain.get(DRIFT, {}), reader)
    except InvalidWorkflow:
        drift = None
    return {**plain, TABLE: policy, DRIFT: drift}


def _policy(table: Any, reader: TableReader) -> Policy | None:
    """Return the policy of a workflow's table; None if the table is empty."""
    return None if table == {} else parse_policy(table, reader)


def _drift(table: Any, reader: TableReader) -> DriftSettings | None:
    """Return the settings of a workflow's table; None if it says nothing."""
    if table == {}:
        return None
    from mulligan.drift.table import parse_drift  # it looks for installed signals

    return parse_drift(table, reader)


def _without_broken_checks(agent: AgentSpec) -> AgentSpec:
    """Return an agent without health and drill commands that lack a secret: they would fail."""
    commands = {"health": agent.health, "drill": agent.drill}
    broken = {key: None for key, command in commands.items() if HIDDEN in (command or ())}
    return msgspec.structs.replace(agent, **broken) if broken else agent


def load(file: Path) -> Workflow:
    """Return the workflow in a TOML file; raises ``InvalidWorkflow`` with line and key."""
    try:
        text = read_text(file)
    except OSError as error:
        raise InvalidWorkflow(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidWorkflow(f"{file} cannot be read: {error}.") from error
    return parse(text, file)


def parse(text: str, file: Path) -> Workflow:
    """Return the workflow in the text of a TOML file; paths in it start at the file's directory."""
    import tomllib  # slow to import, and most workflows are read from the state

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidWorkflow(f"{file}: {error}.") from error
    return _Reader(text, file).workflow(table)


def split_command(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command; raises ``ValueError`` if it names no program."""
    import shlex  # slow to import

    parts = tuple(shlex.split(value)) if isinstance(value, str) else value
    if not parts or not parts[0]:
        raise ValueError("a command names a program")
    return parts


def _session(name: str) -> str:
    return check_name(name, "session name")


_Texts = Annotated[tuple[str, ...], described("a list of texts")]
_Variable = Annotated[str, described("a text")]
_Command = Annotated[str | tuple[str, ...], described("a text or a list of texts", split_command)]
_Factor = Annotated[float, described("a number from 1 to 100", ge=1, le=100)]
_Restart = Annotated[
    Literal["on_failure", "always", "never"], described(f"one of {', '.join(RESTARTS)}")
]


class _BackoffTable(msgspec.Struct):
    """The keys of ``[agents.NAME.backoff]``."""

    initial: Duration
    factor: _Factor
    max: Duration


class _AgentTable(msgspec.Struct):
    """The keys of ``[agents.NAME]``."""

    command: _Command
    again: _Command
    directory: Text
    env: dict[str, _Variable]
    pass_env: _Texts
    prompt: Text
    after: _Texts
    restart: _Restart
    max_restarts: Count
    within: Duration
    quarantine_after: Count
    backoff: _BackoffTable
    heartbeat: Duration
    progress: Duration
    checkpoint_interval: Duration
    health: _Command
    health_interval: Duration
    drill: _Command


class _DrillTable(msgspec.Struct):
    """The keys of ``[drill]``."""

    every: Duration
    timeout: Duration


class _WorkflowTable(msgspec.Struct):
    """The keys of a workflow file."""

    session: Annotated[str, described("a text", _session)]
    workspace: Text
    checkpoint_interval: Duration
    watch: Annotated[bool, described("true or false")]
    retention: dict[str, Any]
    drill: _DrillTable
    drift: dict[str, Any]
    verify: dict[str, Any]
    agents: dict[str, _AgentTable]


class _Reader:
    """Turns the tables of a file into a workflow."""

    def __init__(self, text: str, file: Path) -> None:
        self._tables = TableReader(text, file, InvalidWorkflow, RENAMED)
        self._error = self._tables.error
        self._file = file

    def workflow(self, table: dict[str, Any]) -> Workflow:
        fields = self._tables.fields(table, (), _WorkflowTable)
        directory = self._file.absolute().parent
        workspace = fields.get("workspace")
        top = directory if workspace is None else (directory / workspace).resolve()
        if workspace is not None:
            fields["workspace"] = str(top)
        if not fields.get("agents"):
            raise self._error(("agents",), "a workflow needs at least one [agents.NAME]")
        agents = {name: self._agent(name, made, top) for name, made in fields["agents"].items()}
        self._check_order(agents)
        policy = _policy(fields.get(TABLE, {}), self._tables)
        drift = _drift(fields.get(DRIFT, {}), self._tables)
        fields["drill"] = DrillSettings(**fields.get("drill", {}))
        if VERIFY_TABLE in fields:
            fields[VERIFY_TABLE] = parse_verify(fields[VERIFY_TABLE], self._tables)
        made = {"agents": agents, TABLE: policy, DRIFT: drift, "file": str(self._file.absolute())}
        return Workflow(**{**fields, **made})

    def _agent(self, name: str, fields: dict[str, Any], top: Path) -> AgentSpec:
        place = ("agents", name)
        try:
            check_agent(name)
        except InvalidName as error:
            raise self._error(place, str(error)) from error
        if name == SUPERVISOR:
            raise self._error(place, f"{SUPERVISOR!r} is the name of the supervisor itself")
        if "command" not in fields:
            raise self._error(place, "an agent needs a command")
        directory = str((top / fields.get("directory", ".")).resolve())
        backoff = Backoff(**fields.get("backoff", {}))
        prompt = self._prompt(fields.get("prompt"), place)
        return AgentSpec(**{**fields, "directory": directory, "backoff": backoff, "prompt": prompt})

    def _prompt(self, prompt: str | None, place: Place) -> str | None:
        try:
            return read_prompt(prompt, self._file.parent)
        except ValueError as error:  # or it is not text
            raise self._error((*place, "prompt"), f"{error}") from error

    def _check_order(self, agents: Mapping[str, AgentSpec]) -> None:
        """Refuse an agent that waits for an unknown agent, or indirectly for itself."""
        for name, agent in agents.items():
            place = ("agents", name, "after")
            for other in agent.after:
                if other not in agents:
                    raise self._error(place, f"there is no agent {other!r}")
                if agents[other].restart == ALWAYS:
                    raise self._error(place, f"{other!r} is always restarted, so it is never done")
            if _leads_back(name, agents):
                raise self._error(place, f"{name!r} would wait for itself")


def read_prompt(prompt: str | None, directory: Path) -> str | None:
    """Return a prompt, read from a file when it is ``@FILE``; raise ``ValueError`` if it cannot."""
    if prompt is None or not prompt.startswith("@"):
        return prompt
    file = directory / prompt[1:]
    try:
        return read_text(file)
    except OSError as error:
        raise ValueError(f"the file {str(file)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the file {str(file)!r} cannot be read: {error}") from error


def _leads_back(name: str, agents: Mapping[str, AgentSpec]) -> bool:
    seen: set[str] = set()
    pending = [*agents[name].after]
    while pending:
        other = pending.pop()
        if other == name:
            return True
        if other in agents and other not in seen:
            seen.add(other)
            pending += agents[other].after
    return False
