"""Repairing a store: its files first, then what its checkpoints lack."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from mulligan import layout
from mulligan.clock import Clock, SystemClock
from mulligan.errors import MulliganError, StoreNotFound
from mulligan.failpoints import FailpointHook, ignore
from mulligan.locate.pointer import read_pointer
from mulligan.locate.project import read_places, remember
from mulligan.model import Report
from mulligan.opener import open_store
from mulligan.repair.files import RepairStep, repair_files
from mulligan.repair.originals import kept_originals
from mulligan.repair.trial import trial_copy
from mulligan.store import Store, engine_of, environment_of
from mulligan.upkeep.heal import DamagedCheckpoint, Healed, heal
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.purge.name_again import name_again
from mulligan.upkeep.verify.record import newest_verify, record_report


class Repaired(msgspec.Struct, frozen=True):
    """What a repair found and did, what is lost, and where the damaged originals are.

    ``may_be_lost`` is what may have existed besides, without a trace of it. ``damaged`` are the
    checkpoints that lack something, ``current`` the paths of the newest states that do. ``report``
    is what ``verify`` finds afterwards; None if nothing was changed.
    """

    steps: tuple[RepairStep, ...]
    healed: tuple[str, ...]
    lost_events: tuple[str, ...]
    damaged: tuple[DamagedCheckpoint, ...]
    current: dict[str, list[str]]
    originals: tuple[str, ...]
    report: Report | None = None
    may_be_lost: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is lost for all that is known, and nothing is broken any more."""
        is_sound = self.report is None or self.report.ok
        lost = self.lost_events or self.may_be_lost or self.damaged or self.current
        return is_sound and not lost


def repair_store(
    directory: Path,
    variables: Mapping[str, str],
    *,
    project: Path | None = None,
    dry_run: bool = False,
    clock: Clock | None = None,
    failpoint: FailpointHook = ignore,
    progress: Callable[[str], None] = lambda _: None,
) -> Repaired:
    """Repair the store in a directory; ``project`` is the directory whose pointer leads to it.

    No process may have it open; otherwise ``StoreInUse`` is raised. With ``dry_run``, a copy is
    repaired instead, which shares the packs: the result is the same, and nothing is changed.
    Idempotent, and safe to be killed: the next call goes on.
    """
    clock = clock or SystemClock()
    if dry_run:
        with trial_copy(directory) as copy:
            found = _repaired(copy, variables, clock, failpoint, progress, verify=False)
            steps = tuple(_of(step, copy, directory) for step in found.steps)
    else:
        found = _repaired(directory, variables, clock, failpoint, progress, verify=True)
        steps = found.steps
    return msgspec.structs.replace(
        found,
        steps=(*steps, *_project(directory, project, dry_run=dry_run)),
        originals=_originals(directory),
    )


def _of(step: RepairStep, copy: Path, directory: Path) -> RepairStep:
    """Return what was found in a copy of a store as it is of the store."""
    name, other = str(copy), str(directory)
    return RepairStep(step.what, step.found.replace(name, other), step.done.replace(name, other))


def _repaired(
    directory: Path,
    variables: Mapping[str, str],
    clock: Clock,
    failpoint: FailpointHook,
    progress: Callable[[str], None],
    *,
    verify: bool,
) -> Repaired:
    files = repair_files(directory, clock.now(), failpoint=failpoint, progress=progress)
    with open_store(directory, variables, False, (), clock, failpoint, upkeep=False) as store:
        engine = engine_of(store)
        with upkeep_lock(engine, wait=True):
            # Under the lock: a collection beside it could remove what is being stored again.
            named = name_again(engine)
            healed = _healed(store, progress)
        report = _verified(store, clock, progress, bool(files.steps)) if verify else None
    again = RepairStep("journal", f"no event names tombstones of purges: {named}", "named again")
    return Repaired(
        (*files.steps, again) if named else files.steps,
        healed.healed,
        files.lost_events,
        healed.damaged,
        healed.current,
        (),
        report,
        files.may_be_lost,
    )


def _verified(
    store: Store, clock: Clock, progress: Callable[[str], None], is_repaired: bool
) -> Report:
    """Check every byte; record it if something was repaired, or the last check found damage."""
    began = clock.monotonic()
    report = store.verify(True, progress)
    last = newest_verify(store)
    sessions = store.sessions()
    if sessions and (is_repaired or (last is not None and not last.ok)):
        newest = max(sessions, key=lambda session: session.updated)
        record_report(newest, report, clock.monotonic() - began)
    return report


def _healed(store: Store, progress: Callable[[str], None]) -> Healed:
    engine = engine_of(store)

    def recapture(root: str) -> bool:
        """Capture a directory for its objects alone; what is known of its files is not trusted."""
        assert engine.directory is not None  # noqa: S101 -- a repair has files
        for index in (engine.directory / "tmp").glob("index-*"):
            index.unlink(missing_ok=True)
        # The workspace may be gone, or refuse to be read; the store is as good without it.
        with suppress(MulliganError, OSError):
            name = store.sessions()[0].name
            session = store.session(name, False, workspace=root, force=True, recover=False)
            return session.internal.store_files()
        return False

    return heal(engine, environment_of(store), recapture, progress=progress)


def _project(directory: Path, project: Path | None, *, dry_run: bool) -> list[RepairStep]:
    """Record the project of a store again if the store's note of it is damaged."""
    if project is None or directory.parent == project or read_places(directory):
        return []
    if not dry_run:
        (directory / layout.PROJECT).unlink(missing_ok=True)
        remember(directory, project)
    return [RepairStep("project", "the note of the project cannot be read", f"it is {project}")]


def _originals(directory: Path) -> tuple[str, ...]:
    return tuple(map(str, kept_originals(directory)))


def find_damaged(start: Path) -> tuple[Path, Path | None]:
    """Return the store of a path, however damaged, and the directory whose pointer led to it.

    Unlike elsewhere, FORMAT is not read: it may be what is damaged.
    """
    for directory in (start, *start.parents):
        if directory.name == layout.NAME and directory.is_dir():
            return directory, None
        if _looks_like_store(directory):
            return directory, None
        pointer = read_pointer(directory)
        if pointer is not None and Path(pointer.store).is_dir():
            return Path(pointer.store), directory
        if (directory / layout.NAME).is_dir():
            return directory / layout.NAME, directory
    raise StoreNotFound(f"There is no store in {start} or any directory above it.")


def _looks_like_store(directory: Path) -> bool:
    """Whether a directory has the parts of a store; one of them may be lost."""
    return sum((directory / part).is_dir() for part in ("journal", "packs", layout.LOCKS)) >= 2


def repairable(path: str | os.PathLike[str] | None) -> tuple[Path, Path | None]:
    """Return the store to repair: at a path, or of the present directory."""
    if path is None:
        return find_damaged(Path.cwd())
    found = Path(path).absolute()
    if found.is_file() and found.name == layout.NAME:
        found = found.parent
    if not found.is_dir():
        raise StoreNotFound(f"There is no store at {found}.")
    return find_damaged(found)
