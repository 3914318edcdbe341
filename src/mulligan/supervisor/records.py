"""What the supervisor records: processes and how they ended, requests and their answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import CONTROL, STATE, Change, event_change
from mulligan.document.values import freeze
from mulligan.model import Checkpoint, Lease
from mulligan.recovery.detect import GAVE_UP
from mulligan.session import Session
from mulligan.session.components import AGENTS, TASKS
from mulligan.session.parts.tasks import FAILED, IN_PROGRESS, QUARANTINED, Board
from mulligan.session.runtime.drift_watch import REFRESH_REQUESTS
from mulligan.session.runtime.loop import RESTART_STATUS
from mulligan.session.write.decisions import Changes
from mulligan.supervisor.machine import how_ended
from mulligan.supervisor.stimuli import Exited, Quarantine, RequestSafePoint, TakeCheckpoint, Wanted
from mulligan.supervisor.workflow import Workflow
from mulligan.timeline.marks import BAD, GOOD, Mark, mark_change

if TYPE_CHECKING:  # it imports asyncio, and most readers of records start no process
    from mulligan.supervisor.process import Ending

RUNNING = "running"
PAUSED = "paused"

PASSING = ("request", "answers", "barrier", "reason", GAVE_UP, REFRESH_REQUESTS)
"""The parts of a session's control that the next supervisor clears."""


class SupervisorRequest(msgspec.Struct, frozen=True):
    """A request to the agents."""

    id: str
    kind: str
    deadline: datetime
    wanted: Wanted = Wanted()


class Records:
    """Writes for one supervisor, through its handle on the session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def lease(self) -> Lease | None:
        """The lease under which all this is written."""
        return self._session.agent.lease

    @property
    def status(self) -> str | None:
        """How the previous supervisor left the session, or ``running``."""
        found: str | None = self._session.internal.control("status")
        return found

    def agent(self, name: str) -> dict[str, Any]:
        """Return the record of an agent."""
        found = self._session.state.get((AGENTS, name), {})
        return found if isinstance(found, dict) else {}

    def prompts(self) -> dict[str, str | None]:
        """Return the prompts of the team that ran before."""
        agents = self._session.state.get("orchestrator/workflow/agents", {})
        return {name: agent.get("prompt") for name, agent in agents.items()}

    def begin(
        self,
        workflow: Workflow,
        resumed: bool,
        void: str | None = None,
        *,
        afresh: bool = False,
    ) -> None:
        """Record the team, and that it is running.

        Requests to an earlier supervisor are dropped: the request ``void``, and its answers.
        ``afresh`` starts over: all agents wait, whatever they did in an earlier run.
        """
        plain = freeze(workflow.to_plain())
        names = workflow.agents if afresh else ()
        waiting = [change for name in names for change in _changes(name, {"state": "waiting"})]

        def decide(document: Document) -> Iterable[Change]:
            # A request written after the lease was taken is for this supervisor, and stays.
            control: list[list[Any]] = [[["status"], RUNNING]]
            is_new = document.find((*CONTROL, "request", "id")) not in (MISSING, void)
            past = [k for k in PASSING if not (k == "request" and is_new)]
            control += [[[k]] for k in past if document.find((*CONTROL, k)) is not MISSING]
            team = [["orchestrator", "workflow"], plain]
            changes = [team, *waiting]
            return [event_change("orchestrator.started", changes, control, resumed=resumed)]

        self._session.internal.commit_events(decide)

    def finish(self, status: str, reason: str) -> None:
        """Record how the run ended."""
        control = [[["status"], status], [["reason"], reason]]
        self._tell("orchestrator.finished", control=control, status=status, reason=reason)

    def starting(self, name: str, fields: Mapping[str, Any]) -> None:
        """Record how an agent is about to be started; raises ``StaleLease``."""
        known = self.agent(name)
        ended = bool(known.get("signal") or known.get("exit_status"))
        # How the previous process ended says nothing about this one.
        fields = {**fields, **({"last_action": None} if ended else {})}
        frozen = freeze({**fields, "state": "starting", "exit_status": None, "signal": None})
        self._tell("agent.updated", _changes(name, frozen), agent=name)

    def restarts(self, name: str, *, again: bool) -> int:
        """Return how often an agent was started before its next start."""
        return _restarts(self.agent(name), again=again)

    def started(self, name: str, fields: Mapping[str, Any], *, again: bool) -> None:
        """Record the process of an agent; ``again`` if it is not its first one."""
        frozen = freeze(dict(fields))

        def decide(document: Document) -> Iterable[Change]:
            # Counted on the newest document: a restore may have reverted the count.
            found = document.find((*STATE, AGENTS, name))
            known = {} if found is MISSING else document.plain(found)
            restarts = _restarts(known, again=again)
            changes = _changes(name, {**frozen, "restarts": restarts})
            process = frozen["process_id"]
            return [event_change("agent.started", changes, agent=name, process_id=process)]

        self._session.internal.commit_events(decide)

    def remind(self, running: Mapping[str, Mapping[str, Any]]) -> None:
        """Record the processes of agents again where a restore has replaced them."""
        frozen = {name: freeze(dict(facts)) for name, facts in running.items()}

        def decide(document: Document) -> Iterable[Change]:
            for name, facts in frozen.items():
                if document.find((*STATE, AGENTS, name, "process_id")) != facts["process_id"]:
                    yield event_change("agent.updated", _changes(name, facts), agent=name)

        # Checked without the write lock first: this runs once a second and rarely has to write.
        if any(self.agent(name).get("process_id") != f["process_id"] for name, f in frozen.items()):
            self._session.internal.commit_events(decide)

    def exited(self, name: str, ending: Ending, *, counts: bool) -> Exited:
        """Record how a process ended, and count it against its task if it ``counts``."""
        status = ending.status
        is_crash = counts and not ending.output_closed and status not in (0, RESTART_STATUS)
        fields = {
            "exit_status": status if status >= 0 else None,
            "signal": -status if status < 0 else None,
            "resources": ending.resources,
        }

        def decide(work: Changes) -> Exited:
            changes = _changes(name, freeze(fields))
            task, crashes = _suspect(work.document, name) if is_crash else (None, [])
            if task is not None:
                changes.append([[TASKS, task, "crashes"], crashes])
            said = work.document.find((*STATE, AGENTS, name, "state"))
            state = said if isinstance(said, str) else ""
            work.add(event_change("agent.exited", changes, agent=name, how=how_ended(status)))
            return Exited(name, status, state, task, len(crashes), ending.output_closed)

        return self._session.internal.commit(decide)

    def used(self, usage: Mapping[str, Mapping[str, Any]]) -> None:
        """Record the resource usage of the agents' processes so far."""
        frozen = freeze({name: dict(used) for name, used in usage.items()})
        changes = [one for name in frozen for one in _changes(name, {"resources": frozen[name]})]
        if changes:
            self._tell("agent.measured", changes, agents=list(frozen))

    def state(self, name: str, state: str, last_action: str | None = None) -> None:
        """Record the state of an agent."""
        fields = {"state": state}
        if last_action is not None:
            fields["last_action"] = last_action[:500]
        self._tell("agent.updated", _changes(name, fields), agent=name)

    def settled(self, name: str) -> None:
        """Record an agent as working that has not reported any state itself."""

        def decide(document: Document) -> Iterable[Change]:
            if document.find((*STATE, AGENTS, name, "state")) != "starting":
                return []
            return [event_change("agent.updated", _changes(name, {"state": "working"}), agent=name)]

        self._session.internal.commit_events(decide)

    def not_started(self, name: str, status: int, reason: str) -> None:
        """Record that the system refused to run an agent's command."""
        fields = {"exit_status": status, "signal": None, "state": "starting"}
        self._tell("agent.exited", _changes(name, fields), agent=name, how=reason[:500])

    def gave_up(self, name: str, reason: str) -> None:
        """Record that an agent failed for good."""
        fields = {"state": "failed", "last_action": f"given up: {reason}"[:500]}
        changes = _changes(name, fields)
        self._tell("orchestrator.escalated", changes, agent=name, reason=reason[:500])

    def ask_restart(self, name: str, rung: str) -> None:
        """Ask one agent to end at its next safe point."""
        control = [[[REFRESH_REQUESTS, name], rung]]
        self._tell("drift.asked", control=control, agent=name, rung=rung)

    def answered_restart(self, name: str) -> None:
        """Forget that an agent was asked to end: its process is gone."""

        def decide(document: Document) -> Iterable[Change]:
            place = [REFRESH_REQUESTS, name]
            if document.find((*CONTROL, *place)) is MISSING:
                return []
            return [event_change("drift.left", control=[[place]], agent=name)]

        self._session.internal.commit_events(decide)

    def not_prepared(self, name: str | None, rung: str, reason: str) -> None:
        """Write down that a response to drift, or the watch itself, failed."""
        self._tell("drift.failed", agent=name, rung=rung, error=reason[:500])

    def isolated(self, name: str, why: str) -> None:
        """Write down that an agent waits for a person."""
        fields = {"state": "suspended", "last_action": f"isolated: {why}"[:500]}
        self._tell("orchestrator.escalated", _changes(name, fields), agent=name, reason=why[:500])

    def quarantine(self, bad: Quarantine) -> None:
        """Fail a task that ends the processes which work on it."""
        ended = f"{bad.crashes} processes of {bad.agent} ended while they worked on it"
        error = f"{QUARANTINED}{ended}"
        changes = [[[TASKS, bad.task, "status"], FAILED], [[TASKS, bad.task, "error"], error]]

        def decide(document: Document) -> Iterable[Change]:
            place = (*STATE, TASKS, bad.task)
            now = (document.find((*place, "status")), document.find((*place, "owner")))
            if now != (IN_PROGRESS, bad.agent):
                return []  # it was retried meanwhile, or another agent has it
            idle = _changes(bad.agent, {"working_on": None})
            return [
                event_change("task.quarantined", changes + idle, task=bad.task, agent=bad.agent)
            ]

        self._session.internal.commit_events(decide)

    def request_safe_point(self, asked: RequestSafePoint, seconds: float) -> None:
        """Publish a request to the agents, unless it is there already."""
        if self.request_id() == asked.id:
            return
        deadline = self._session.internal.clock.now() + timedelta(seconds=seconds)
        request = freeze({"id": asked.id, "kind": asked.kind, "deadline": deadline})
        self._tell("orchestrator.asked", control=[[["request"], request]], request=asked.kind)

    def request(self) -> SupervisorRequest | None:
        """Return the pending request to the agents, if there is one."""
        found = self._session.internal.control("request")
        return msgspec.convert(found, ready(SupervisorRequest)) if found else None

    def request_id(self) -> str | None:
        """Return the id of the pending request."""
        request = self.request()
        return request.id if request else None

    def answered(self, id: str) -> list[str]:
        """Return the agents that have answered a request."""
        answers = self._session.internal.control("answers", {})
        return [name for name, answer in answers.items() if answer == id]

    def barrier(self, taken: TakeCheckpoint, checkpoint: Checkpoint | None) -> None:
        """Record which agents answered a request or were late, and its checkpoint."""
        facts: dict[str, Any] = freeze(
            {
                "id": taken.id,
                "answered": list(taken.answered),
                "late": list(taken.late),
                "checkpoint": checkpoint.id if checkpoint else None,
            }
        )

        def decide(document: Document) -> Iterable[Change]:
            control: list[list[Any]] = [[["barrier"], facts]]
            # Only the request that was answered: a newer one may be there by now.
            if document.find((*CONTROL, "request", "id")) == taken.id:
                control.append([["request"]])
            return [event_change("orchestrator.barrier", control=control, **facts)]

        self._session.internal.commit_events(decide)

    def mark(self, checkpoint: Checkpoint, is_good: bool, by: str) -> None:
        """Give a checkpoint the verdict of a health command."""
        mark = Mark(GOOD if is_good else BAD, by)
        self._session.internal.commit_events(lambda _: [mark_change(checkpoint.id, mark)])

    def _tell(
        self,
        kind: str,
        changes: list[list[Any]] | None = None,
        control: list[list[Any]] | None = None,
        **facts: Any,
    ) -> None:
        self._session.internal.commit_events(
            lambda _: [event_change(kind, changes or [], control or [], **facts)]
        )


def _changes(name: str, fields: Mapping[str, Any]) -> list[list[Any]]:
    return [[[AGENTS, name, key], value] for key, value in fields.items()]


def _restarts(known: Mapping[str, Any], *, again: bool) -> int:
    """Return how often an agent was started before; ``again`` continues what is recorded."""
    before = known.get("restarts")
    count = before if isinstance(before, int) else 0
    return count + 1 if again and "process_id" in known else 0


def _suspect(document: Document, name: str) -> tuple[str | None, list[int]]:
    """Return the task that an agent worked on, and which attempts at it ended like this one.

    If the process ended before it claimed the task again, the task is not to blame.
    """
    held = {
        task: record
        for task, record in Board(document).records.items()
        if record["status"] == IN_PROGRESS and record.get("owner") == name
    }
    said = document.find((*STATE, AGENTS, name, "working_on"))
    first = min(held, key=lambda task: held[task]["order"], default=None)
    task = said if isinstance(said, str) and said in held else first
    if task is None:
        return None, []
    crashes, attempt = document.plain(held[task].get("crashes", [])), held[task].get("attempts", 0)
    return (None, []) if attempt in crashes else (task, [*crashes, attempt])
