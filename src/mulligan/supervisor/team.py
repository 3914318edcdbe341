"""The processes of a workflow's agents, with their leases and variables."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mulligan import opener
from mulligan.errors import InvalidWorkflow
from mulligan.redact import without_secrets
from mulligan.session import Session
from mulligan.session.environment import ALLOWED, safe_variables
from mulligan.session.runtime.usage import usage
from mulligan.session.write.leases import this_holder
from mulligan.store import LEASE_TTL, Store
from mulligan.supervisor.heartbeat import HeartbeatReader, heartbeat_reader
from mulligan.supervisor.process import Ending, Process, start
from mulligan.supervisor.records import Records
from mulligan.supervisor.sink import Sink
from mulligan.supervisor.stimuli import Beat, Progressed
from mulligan.supervisor.terminal import Terminal
from mulligan.supervisor.workflow import AgentSpec, Workflow

RESERVED_VARIABLES = (
    opener.STORE,
    opener.SESSION,
    opener.AGENT,
    opener.EPOCH,
    opener.WORKSPACE,
    opener.HEARTBEAT,
    opener.CHECKPOINT_INTERVAL,
    opener.PROMPT,
    opener.RESTARTS,
    opener.HANDOVER,
    opener.SUPERVISOR_ID,
)
"""The variables that only the supervisor sets; inherited values are dropped."""

MAX_PROMPT = 100_000
"""Bytes of a prompt that fit into a variable; a longer one is only in the agent's record."""

ASSUME_WORKING_SECONDS = 2.0
"""Seconds after which an agent that has not reported a state counts as working."""

Gone = Callable[[str, Ending], None]
Show = Callable[[str, bytes], None]


class Member:
    """One running agent: its process, what is recorded about it, and its heartbeat."""

    def __init__(
        self, process: Process, facts: dict[str, Any], beats: HeartbeatReader, started: float
    ) -> None:
        self.process = process
        self.facts = facts
        self.beats = beats
        self.started = started
        self.is_settled = False


class Team:
    """Starts and ends the processes of a workflow's agents."""

    def __init__(
        self,
        store: Store,
        workflow: Workflow,
        records: Records,
        variables: Mapping[str, str],
        gone: Gone,
        *,
        show: Show | None = None,
        output: int | None = None,
        stdin: int | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        self._store = store
        self._workflow = workflow
        self._records = records
        self._variables = variables
        self._gone = gone
        self._show = show
        self._output = output
        # Two agents cannot share what is typed: only one that is alone reads it.
        is_alone = len(workflow.agents) == 1
        self._stdin = stdin if is_alone else None
        self._terminal = terminal if is_alone else None
        self._members: dict[str, Member] = {}
        self._leases: dict[str, Session] = {}
        self._renewed_prompts: set[str] = set()
        self._handovers: dict[str, str] = {}
        self._sink: Sink | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._members))

    def remember_prompts(self) -> None:
        """Find the prompts that changed in the workflow since the last run; they apply again."""
        before = self._records.prompts()
        for name, spec in self._workflow.agents.items():
            if spec.prompt is not None and spec.prompt != before.get(name):
                self._renewed_prompts.add(name)

    def hand_over(self, name: str, text: str) -> None:
        """Tell an agent something when its process is started next."""
        self._handovers[name] = text

    def start(self, name: str, now: float, *, again: bool) -> int:
        """Start an agent's process and return its number; raises ``OSError`` or ``ValueError``."""
        spec, known = self._workflow.agents[name], self._records.agent(name)
        prompt = known.get("current_prompt") if again else None
        if prompt is None or name in self._renewed_prompts:
            prompt = spec.prompt
            self._renewed_prompts.discard(name)
        restarts = self._records.restarts(name, again=again)
        command = spec.again if spec.again and restarts else spec.command
        # Written before the process starts: from then on the agent writes state and prompt.
        fields: dict[str, Any] = {
            "command": without_secrets(command),
            "directory": str(self._directory(spec) or ""),
            "environment": safe_variables(
                {**self._inherited(), **spec.env}, ALLOWED | spec.env.keys()
            ),
            "current_prompt": prompt,
        }
        self._records.starting(name, fields)
        if self._show is not None and self._sink is None:
            self._sink = Sink()
        lease = self._store.session(self._workflow.session, create=False, actor=name)
        # Under the supervisor's own lease, in one transaction: a supervisor that was replaced can
        # no longer start agents.
        epoch = lease.internal.take(LEASE_TTL, steal=True, under=self._records.lease).epoch
        self._leases[name] = lease
        beats = heartbeat_reader(str(self._store.path), self._workflow.session, name, epoch)
        process = start(
            command,
            self._directory(spec),
            self.variables(name, epoch, beats.file, prompt, restarts),
            lambda ending: self._gone(name, ending),
            None if self._show is None else lambda line: self._print(name, line),
            self._output,
            self._stdin,
            self._terminal,
        )
        facts = {
            "process_id": process.pid,
            "identity": process.identity,
            "started": lease.internal.clock.now(),
            "epoch": epoch,
        }
        # Before the next write, which may fail: a process that is not in the list would not be
        # ended.
        self._members[name] = Member(process, facts, beats, now)
        if self._sink is not None and process.output is not None:
            self._sink.hold(process.output)
        self._records.started(name, facts, again=again)
        return process.pid

    def remind(self) -> None:
        """Record the running processes again, in case a restore reverted that."""
        self._records.remind({name: member.facts for name, member in self._members.items()})

    def groups(self) -> list[int]:
        """Return the process groups of the agents; may be called from another thread."""
        members = list(self._members.values())
        return [member.process.pid for member in members if not member.process.is_gone]

    def usage(self) -> dict[str, dict[str, Any]]:
        """Return the resource usage of the agents' processes so far."""
        found = {name: usage(member.process.pid) for name, member in self._members.items()}
        return {name: used for name, used in found.items() if used is not None}

    def kill(self, name: str, number: int) -> None:
        """Send a signal to all processes of an agent."""
        if name in self._members:
            self._members[name].process.kill(number)

    def terminate(self, *, attached: bool) -> None:
        """Send SIGTERM to the agents that attached to their session, or to those that did not."""
        for name, member in self._members.items():
            if self._is_attached(name) == attached and not member.process.is_gone:
                member.process.kill(signal.SIGTERM)

    def _is_attached(self, name: str) -> bool:
        """Whether an agent adopted the lease that was taken for it."""
        lease = self._leases[name].internal.lease_of(name) if name in self._leases else None
        return lease is not None and lease.holder != this_holder()

    def ended(self, name: str) -> Member:
        """Remove an agent whose process has ended."""
        member = self._members.pop(name)
        member.beats.forget()
        return member

    def release(self, name: str) -> None:
        """Release the lease of an agent at rest; its processes can no longer write."""
        # After its process has ended: a lease that is released earlier could be taken while it
        # still writes.
        if lease := self._leases.pop(name, None):
            lease.internal.release()

    async def end(self) -> None:
        """End all processes that are left, and wait for them."""
        for member in self._members.values():
            member.process.kill(signal.SIGKILL)
        # Bounded: a process in an uninterruptible system call does not end even by SIGKILL.
        for _ in range(200):
            if all(member.process.is_gone for member in self._members.values()):
                break
            await asyncio.sleep(0.01)
        if self._sink is not None:
            self._sink.close()

    @property
    def has_terminal(self) -> bool:
        """Whether an agent has the terminal now."""
        return self._terminal is not None and self._terminal.is_lent

    def look_for_stops(self) -> None:
        """Lend the terminal to an agent that was stopped because it wants it."""
        for member in list(self._members.values()):
            member.process.look_for_stop()

    def look(self, now: float) -> Iterator[Beat | Progressed]:
        """Yield the heartbeats and steps since the last call."""
        for name, member in list(self._members.items()):
            yield from member.beats.look(name)
            if not member.is_settled and now - member.started >= ASSUME_WORKING_SECONDS:
                member.is_settled = True
                self._records.settled(name)

    def variables(
        self, name: str, epoch: int, heartbeat: Path, prompt: Any, restarts: int = 0
    ) -> dict[str, str]:
        """Return an agent's variables: inherited, the workflow's, and its identity."""
        workflow, spec = self._workflow, self._workflow.agents[name]
        own = opener.agent_variables(
            str(self._store.path),
            workflow.session,
            name,
            epoch,
            heartbeat=heartbeat,
            checkpoint_interval=workflow.checkpoint_interval_of(name),
            workspace=Path(workflow.workspace) if workflow.workspace else None,
            prompt=prompt if _fits(prompt) else None,
            restarts=restarts,
            handover=told if _fits(told := self._handovers.pop(name, None)) else None,
        )
        return {**self._inherited(), **spec.env, **own}

    def _inherited(self) -> dict[str, str]:
        return {
            name: value for name, value in self._variables.items() if name not in RESERVED_VARIABLES
        }

    def _directory(self, spec: AgentSpec) -> Path | None:
        place = spec.directory or self._workflow.workspace
        return None if place is None else Path(place)

    def _print(self, name: str, line: bytes) -> None:
        if self._show is not None:
            self._show(name, line)


def _fits(prompt: Any) -> bool:
    """Whether a prompt can be a variable; agents may write anything into their records."""
    if not isinstance(prompt, str) or "\0" in prompt:
        return False
    return len(os.fsencode(prompt)) <= MAX_PROMPT


def check_variables(workflow: Workflow, variables: Mapping[str, str]) -> None:
    """Refuse to start agents without the variables that they need; raises ``InvalidWorkflow``."""
    for name, spec in workflow.agents.items():
        missing = [key for key in spec.pass_env if key not in variables and key not in spec.env]
        if missing:
            raise InvalidWorkflow(
                f"The agent {name!r} needs {', '.join(missing)}, which is not set here.",
                hint="Nothing was started. Set it in the environment, then try again.",
            )
