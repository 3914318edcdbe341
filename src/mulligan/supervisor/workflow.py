"""Workflows: which agents run, how, and what becomes of them when they fail.

A workflow comes from a TOML file (``load``), from a command line, or from the state of a session
that is to be resumed (``from_plain``). It never carries a secret into the state (``to_plain``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from mulligan.errors import InvalidName, InvalidWorkflow
from mulligan.redact import HIDDEN, is_secret, without_secrets
from mulligan.session.names import SUPERVISOR, check_agent, check_name

ON_FAILURE = "on_failure"
ALWAYS = "always"
NEVER = "never"
POLICIES = (ON_FAILURE, ALWAYS, NEVER)

CHECKPOINT_INTERVAL_SECONDS = 300.0
"""Seconds between routine checkpoints, unless told otherwise."""

RENAMED = {"every": "checkpoint_interval", "health_every": "health_interval"}
"""Keys that were renamed: refused by name in a file, and read where a session kept them."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait before a restart; the first one after a good while is not delayed."""

    initial: float = 0.5
    factor: float = 2.0
    max: float = 30.0


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One agent: how it is started, and what is done when it ends or hangs.

    A task that has ended so many of its processes as ``quarantine_after`` says is given up.
    ``checkpoint_interval`` is the time between routine checkpoints, if it is not that of the team.
    """

    command: tuple[str, ...]
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


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """A team of agents on one session."""

    agents: dict[str, AgentSpec]
    session: str = "main"
    workspace: str | None = None
    checkpoint_interval: float = CHECKPOINT_INTERVAL_SECONDS
    retention: dict[str, Any] = {}
    file: str | None = None

    @property
    def shortest(self) -> float:
        """Seconds between routine checkpoints of the team: what its most eager agent wants."""
        return min(map(self.checkpoint_interval_of, self.agents), default=self.checkpoint_interval)

    def checkpoint_interval_of(self, agent: str) -> float:
        """Return the seconds between routine checkpoints that an agent wants."""
        return self.agents[agent].checkpoint_interval or self.checkpoint_interval

    def to_plain(self) -> dict[str, Any]:
        """Return the workflow for the state, without what looks like a secret.

        A variable that does is named in ``pass_env`` instead: whoever resumes has to have it.
        """
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        for agent in plain["agents"].values():
            secret = {name for name, value in agent["env"].items() if is_secret(name, value)}
            agent["env"] = {n: value for n, value in agent["env"].items() if n not in secret}
            agent["pass_env"] = sorted({*agent["pass_env"], *secret})
            for key in ("command", "health"):
                agent[key] = agent[key] and without_secrets(agent[key])
        return plain


def from_plain(plain: Any) -> Workflow:
    """Return the workflow that ``to_plain`` put into the state; raises ``InvalidWorkflow``."""
    try:
        workflow = msgspec.convert(_with_new_keys(plain), Workflow)
    except msgspec.ValidationError as error:
        raise InvalidWorkflow(f"The workflow in the state cannot be used: {error}.") from error
    for name, agent in workflow.agents.items():
        if HIDDEN in agent.command:
            raise InvalidWorkflow(
                f"The command of {name!r} held a secret, which was not kept.",
                hint="Start it again as it was started; better: pass secrets as variables.",
            )
    agents = {name: _without_broken_health(agent) for name, agent in workflow.agents.items()}
    return msgspec.structs.replace(workflow, agents=agents)


def _with_new_keys(plain: Any) -> Any:
    """Return a workflow that a session kept, under the names that its keys have now."""
    if not isinstance(plain, dict):
        return plain
    named = {RENAMED.get(key, key): value for key, value in plain.items()}
    agents = named.get("agents")
    if isinstance(agents, dict):
        named["agents"] = {name: _with_new_keys(agent) for name, agent in agents.items()}
    return named


def _without_broken_health(agent: AgentSpec) -> AgentSpec:
    """Return an agent without a health command that lacks a secret: it would call it sick."""
    if agent.health is None or HIDDEN not in agent.health:
        return agent
    return msgspec.structs.replace(agent, health=None)


def load(file: Path) -> Workflow:
    """Return the workflow in a TOML file; raises ``InvalidWorkflow`` with line and key."""
    try:
        text = file.read_text()
    except OSError as error:
        raise InvalidWorkflow(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidWorkflow(f"{file} cannot be read: {error}.") from error
    return parse(text, file)


def parse(text: str, file: Path) -> Workflow:
    """Return the workflow in the text of a TOML file; paths in it start at the file's directory."""
    import tomllib  # slow to import, and most who read a workflow have it from the state

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidWorkflow(f"{file}: {error}.") from error
    return _Reader(text, file).workflow(table)


def duration(value: Any) -> float:
    """Return a duration in seconds: a number of them, or text such as 30s, 5m, 2h, 500ms."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r} is not a duration such as '30s', '5m' or '2h'")
        seconds = float(found[1]) * _UNITS[found[2]]
    if not 0 < seconds < float("inf"):
        raise ValueError(f"a duration is more than nothing, not {value!r}")
    return seconds


def _command(value: str | tuple[str, ...]) -> tuple[str, ...]:
    import shlex  # slow to import

    parts = tuple(shlex.split(value)) if isinstance(value, str) else value
    if not parts or not parts[0]:
        raise ValueError("a command names a program")
    return parts


def _session(name: str) -> str:
    return check_name(name, "session name")


def _limit(value: int | float | str) -> int | float | str:
    """Return a limit of retention as it stands: a count, or what is a duration."""
    if not isinstance(value, int) or value < 0:
        duration(value)
    return value


def _kind(words: str, read: Callable[[Any], Any] | None = None, **bounds: Any) -> msgspec.Meta:
    """Return what a value is called in errors, and what turns it into one of the workflow."""
    return msgspec.Meta(description=words, extra={"read": read}, **bounds)


_Text = Annotated[str, _kind("a text", min_length=1)]
_Texts = Annotated[tuple[str, ...], _kind("a list of texts")]
_Variable = Annotated[str, _kind("a text")]
_Command = Annotated[str | tuple[str, ...], _kind("a text or a list of texts", _command)]
_Duration = Annotated[str | int | float, _kind("a duration such as '30s' or '5m'", duration)]
_Count = Annotated[int, _kind("a whole number from 0 on", ge=0)]
_Factor = Annotated[float, _kind("a number from 1 to 100", ge=1, le=100)]
_Policy = Annotated[
    Literal["on_failure", "always", "never"], _kind(f"one of {', '.join(POLICIES)}")
]
_Limit = Annotated[str | int | float, _kind("a number or a duration", _limit)]


class _BackoffTable(msgspec.Struct):
    """The keys of ``[agents.NAME.backoff]``."""

    initial: _Duration
    factor: _Factor
    max: _Duration


class _AgentTable(msgspec.Struct):
    """The keys of ``[agents.NAME]``."""

    command: _Command
    directory: _Text
    env: dict[str, _Variable]
    pass_env: _Texts
    prompt: _Text
    after: _Texts
    restart: _Policy
    max_restarts: _Count
    within: _Duration
    quarantine_after: _Count
    backoff: _BackoffTable
    heartbeat: _Duration
    progress: _Duration
    checkpoint_interval: _Duration
    health: _Command
    health_interval: _Duration


class _WorkflowTable(msgspec.Struct):
    """The keys of a workflow file."""

    session: Annotated[str, _kind("a text", _session)]
    workspace: _Text
    checkpoint_interval: _Duration
    retention: dict[str, _Limit]
    agents: dict[str, _AgentTable]


Key = tuple[str, ...]
"""Where in the file something stands."""


class _Reader:
    """Turns the tables of a file into a workflow, and knows on which line each key stands.

    msgspec checks the values, one by one: its errors do not name the keys of open tables such as
    ``[agents.NAME.env]``, and the line of an error is found by its whole key.
    """

    def __init__(self, text: str, file: Path) -> None:
        self._text = text
        self._file = file

    def workflow(self, table: dict[str, Any]) -> Workflow:
        fields = self._fields(table, (), _WorkflowTable)
        directory = self._file.absolute().parent
        workspace = fields.get("workspace")
        top = directory if workspace is None else (directory / workspace).resolve()
        if workspace is not None:
            fields["workspace"] = str(top)
        if not fields.get("agents"):
            raise self._error(("agents",), "a workflow needs at least one [agents.NAME]")
        agents = {name: self._agent(name, made, top) for name, made in fields["agents"].items()}
        self._check_order(agents)
        return Workflow(**{**fields, "agents": agents, "file": str(self._file.absolute())})

    def _agent(self, name: str, fields: dict[str, Any], top: Path) -> AgentSpec:
        place = ("agents", name)
        try:
            check_agent(name, "agent")
        except InvalidName as error:
            raise self._error(place, str(error)) from error
        if name == SUPERVISOR:
            raise self._error(place, f"{SUPERVISOR!r} is the name of who looks after the agents")
        if "command" not in fields:
            raise self._error(place, "an agent needs a command")
        directory = str((top / fields.get("directory", ".")).resolve())
        backoff = Backoff(**fields.get("backoff", {}))
        prompt = self._prompt(fields.get("prompt"), place)
        return AgentSpec(**{**fields, "directory": directory, "backoff": backoff, "prompt": prompt})

    def _prompt(self, prompt: str | None, place: Key) -> str | None:
        try:
            return read_prompt(prompt, self._file.parent)
        except ValueError as error:  # or it is no text
            raise self._error((*place, "prompt"), f"{error}") from error

    def _check_order(self, agents: Mapping[str, AgentSpec]) -> None:
        """Refuse an agent that waits for nobody that is there, or for itself in the end."""
        for name, agent in agents.items():
            place = ("agents", name, "after")
            for other in agent.after:
                if other not in agents:
                    raise self._error(place, f"there is no agent {other!r}")
                if agents[other].restart == ALWAYS:
                    raise self._error(place, f"{other!r} is always restarted, so it never is done")
            if _leads_back(name, agents):
                raise self._error(place, f"{name!r} would wait for itself")

    def _fields(self, table: Any, place: Key, shape: type[msgspec.Struct]) -> dict[str, Any]:
        """Return the fields of a table that a file has, each checked by its type in the shape."""
        types = {field.name: field.type for field in msgspec.structs.fields(shape)}
        for key in self._table(table, place):
            if key not in types:
                raise self._error((*place, key), f"there is no such key{_meant(key, types)}")
        return {key: self._value(value, (*place, key), types[key]) for key, value in table.items()}

    def _value(self, value: Any, place: Key, kind: Any) -> Any:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._fields(value, place, kind)
        if get_origin(kind) is dict:
            _, inner = get_args(kind)
            table = self._table(value, place)
            return {key: self._value(held, (*place, key), inner) for key, held in table.items()}
        meta: msgspec.Meta = kind.__metadata__[0]
        try:
            found = msgspec.convert(value, kind)
            read = (meta.extra or {}).get("read")
            return found if read is None else read(found)
        except msgspec.ValidationError as error:
            raise self._error(place, f"this is {meta.description}, not {value!r}") from error
        except (ValueError, InvalidName) as error:
            raise self._error(place, str(error)) from error

    def _table(self, value: Any, place: Key) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(place, f"this is a table, not {value!r}")
        return value

    def _error(self, place: Key, message: str) -> InvalidWorkflow:
        from mulligan.supervisor.toml_lines import line_of  # slow to import

        line = line_of(self._text, place)
        end = "" if message.endswith((".", "?")) else "."
        return InvalidWorkflow(f"{self._file}:{line}: {'.'.join(place)}: {message}{end}")


def _meant(key: str, known: Mapping[str, Any]) -> str:
    """Return the key that may have been meant, as the end of a sentence."""
    from difflib import get_close_matches  # slow to import

    near = [RENAMED[key]] if key in RENAMED else get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def read_prompt(prompt: str | None, directory: Path) -> str | None:
    """Return a prompt, read from a file when it is ``@FILE``; raise ``ValueError`` if it cannot."""
    if prompt is None or not prompt.startswith("@"):
        return prompt
    file = directory / prompt[1:]
    try:
        return file.read_text()
    except OSError as error:
        raise ValueError(f"the file {str(file)!r} cannot be read: {error.strerror}") from error


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
