"""Checkpoints that lost something to damage: what a restore of one lacks, and what is intact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE
from mulligan.document.history import document_at
from mulligan.document.values import PathLike, format_path
from mulligan.engine import Engine
from mulligan.errors import CheckpointDamaged
from mulligan.model import Digest, Point
from mulligan.session.names import WORKSPACE
from mulligan.timeline.losses import LOST_OBJECTS, WHOLE, Loss, read_losses
from mulligan.timeline.lost_objects import LostInTrees
from mulligan.timeline.sessions import known_session
from mulligan.workspace.capture.patch import open_tree
from mulligan.workspace.entries import SELF, TreePath, shown


def loss_at(engine: Engine, place: Point) -> tuple[str, Loss] | None:
    """Return the id of the checkpoint at or before a point, and what it lost; None if nothing."""
    with engine.read() as view:
        record = known_session(view, place.session)
        found = view.checkpoint_before(record.number, place.seq)
        if found is None:
            return None
        # Each session records what its own checkpoints lost.
        while record.origin is not None and found[0] <= record.origin.seq:
            record = view.session(record.origin.session)
        newest = document_at(view, record.number, view.head(record.number).seq, engine.load)
    loss = read_losses(newest).get(found[0])
    return None if loss is None else (found[1], loss)


def damaged_seqs(engine: Engine, session: str) -> set[int]:
    """Return the seqs of the checkpoints on a timeline, its ancestors' included, that lost any."""
    found: set[int] = set()
    with engine.read() as view:
        record, last = known_session(view, session), None
        while True:
            head = view.head(record.number).seq
            # Losses are recorded after the fact, so the newest document has them.
            lost = read_losses(document_at(view, record.number, head, engine.load))
            found |= {seq for seq in lost if last is None or seq <= last}
            if record.origin is None:
                return found
            last = record.origin.seq if last is None else min(last, record.origin.seq)
            record = view.session(record.origin.session)


def refuse_damaged(engine: Engine, place: Point, only: Sequence[PathLike] | None) -> None:
    """Raise ``CheckpointDamaged`` if a restore of these parts would lack something."""
    found = loss_at(engine, place)
    if found is None or (only is not None and not _concerns(found[1], only)):
        return
    identity, loss = found
    nearest = f"The nearest intact one is {loss.nearest[:12]}. " if loss.nearest else ""
    raise CheckpointDamaged(
        f"Checkpoint {identity[:12]} lost {'; '.join(loss.parts)}.",
        hint=f"Nothing was changed. {nearest}`mulligan restore {identity[:12]} --partial` restores "
        "the rest of this one.",
    )


def _concerns(loss: Loss, only: Sequence[PathLike]) -> bool:
    """Whether parts that were named lack something; a list that was cut short may hold more."""
    if len(loss.files) < loss.file_count or len(loss.state) < loss.state_count or loss.events:
        return True
    for part in only:
        name = part if isinstance(part, str) else format_path(tuple(part))
        path = name.removeprefix(f"{WORKSPACE}/")
        if path == WORKSPACE and loss.files:
            return True
        if any(_overlap(path, lost) for lost in (*loss.files, *loss.state)):
            return True
    return False


def _overlap(one: str, other: str) -> bool:
    is_whole = WHOLE in (one, other)
    return is_whole or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def refuse_lost_files(
    engine: Engine, newest: Document, tree: Digest, paths: list[TreePath] | None
) -> None:
    """Raise ``CheckpointDamaged`` if files of a tree, or those at paths, are lost.

    Also for undo and redo, whose trees need not be those of checkpoints.
    """
    if newest.find(LOST_OBJECTS) is MISSING:
        return
    lost = [path for path, _ in LostInTrees(engine).lost_in(tree) if _is_among(path, paths)]
    if lost:
        named = ", ".join(shown(path) or "all of them" for path in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise CheckpointDamaged(
            f"Files of that point were lost to damage: {named}{more}.",
            hint="Nothing was changed. `mulligan status` lists what was lost.",
        )


def _is_among(path: TreePath, paths: list[TreePath] | None) -> bool:
    if paths is None:
        return True
    return any(path[: len(one)] == one or one[: len(path)] == path for one in paths)


def intact_parts(
    engine: Engine, place: Point, document: Document, tree: Digest | None
) -> tuple[str, ...]:
    """Return the parts of a point that lack nothing: components of the state, and files."""
    found = loss_at(engine, place)
    lost = {path.split("/")[0] for path in found[1].state} if found else set()
    if WHOLE in lost:
        state: list[str] = []
    else:
        components = document.entries(document.resolved(document.find(STATE)))
        state = [name for name in components if name not in lost]
    if tree is None:
        return tuple(state)
    files = [f"{WORKSPACE}/{shown(path)}" for path in intact_paths(engine, tree)]
    return (*state, *files)


def intact_paths(engine: Engine, tree: Digest) -> Iterator[TreePath]:
    """Yield paths of a tree that together have everything intact, the highest possible ones."""
    lost = {path for path, _ in LostInTrees(engine).lost_in(tree)}
    if () in lost:
        return
    opened = open_tree(Document({}, engine.load), tree)
    pending: list[TreePath] = [()]
    while pending:
        above = pending.pop()
        for name in opened.entries(opened.resolved(opened.find(above))):
            path = (*above, name)
            if name == SELF or path in lost:
                continue
            if any(one[: len(path)] == path for one in lost):
                pending.append(path)
            else:
                yield path
