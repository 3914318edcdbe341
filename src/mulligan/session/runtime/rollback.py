"""Where a rollback goes back to, and which parts it takes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.document.values import PathLike
from mulligan.model import Checkpoint, Path, Point
from mulligan.session.components import AGENTS, ORCHESTRATOR, TASKS, component
from mulligan.session.names import WORKSPACE
from mulligan.timeline.marks import BAD, GOOD

if TYPE_CHECKING:
    from mulligan.session.session import Session

RECOVERY = "recovery"

Record = dict[str, Any]


def good_checkpoints(session: Session) -> list[Checkpoint]:
    """Return the checkpoints that a rollback may go to, the best first.

    Those marked good, newest first. Without any: all that are not marked bad, and are neither
    safety nor recovery checkpoints. One that lost something to damage is passed over: the nearest
    intact one is better than a rollback that is refused.
    """
    marks = {name: mark.verdict for name, mark in session.checkpoints.marks().items()}
    damaged = session.internal.damaged_seqs()
    taken = [c for c in session.checkpoints()[::-1] if c.seq not in damaged]
    good = [c for c in taken if marks.get(c.id) == GOOD]
    return good or [
        c for c in taken if not c.safety and c.kind != RECOVERY and marks.get(c.id) != BAD
    ]


def good_before(session: Session, seq: int) -> Checkpoint | None:
    """Return the newest good checkpoint before an event, if this session has one itself."""
    own = (c for c in good_checkpoints(session) if c.session == session.name)
    return next((c for c in own if c.seq < seq), None)


def shared_parts(session: Session, point: Checkpoint, *, files: bool) -> list[PathLike]:
    """Return what a rollback of an agent that works alone takes back.

    Not the records of processes, the team, and mail that was sent: those are as they are.
    """
    names = {*session.state.get(), *session.state.at(point).get()} - {ORCHESTRATOR, AGENTS}
    parts: list[PathLike] = [(name,) for name in sorted(names) if component(name).rolls_back]
    return [*parts, WORKSPACE] if files and point.workspace is not None else parts


def own_parts(session: Session, agent: str, point: Point) -> list[Path]:
    """Return the parts of the state that are this agent's: its record, and its tasks.

    A task that another agent has by now stays with it; one that was not there at the point
    is not taken out of the list.
    """
    now, then = _tasks(session.state.get(TASKS)), _tasks(session.state.at(point).get(TASKS))
    own = [
        task for task, record in now.items() if task in then and _is_of(agent, record, then[task])
    ]
    return [(AGENTS, agent), *((TASKS, task) for task in sorted(own))]


def others_at_work(session: Session, agent: str) -> list[str]:
    """Return the other agents whose processes hold their leases now."""
    names = _mapping(session.state.get(AGENTS))
    return [name for name in names if name != agent and session.internal.is_held(name)]


def _is_of(agent: str, now: Record, then: Record) -> bool:
    owner = now.get("owner")
    return owner == agent or (owner is None and then.get("owner") == agent)


def _tasks(value: Any) -> dict[str, Record]:
    return {name: record for name, record in _mapping(value).items() if isinstance(record, dict)}


def _mapping(value: Any) -> Record:
    return value if isinstance(value, dict) else {}
