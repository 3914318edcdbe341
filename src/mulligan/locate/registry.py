"""Stores outside their projects, below one directory per user.

::

    $XDG_STATE_HOME/mulligan/
      stores/NAME-ID/     a store; NAME is that of its project, ID the beginning of its id
      inside/ID           the path of a store inside its project, so that it can be listed

The stores are their own registry: each records its project (``mulligan.locate.project``), and a
lookup reads all of them, so nothing can be out of date. Only ``inside/`` is a cache; entries whose
store no longer exists are skipped.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

import msgspec

from mulligan import layout
from mulligan.errors import MulliganError
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.locate.identity import identity_of
from mulligan.locate.project import Place, project_of, read_places, remember

STORES = "stores"
INSIDE = "inside"
ID_LENGTH = 12
UNFINISHED = ".new-"
"""Prefix of the names of stores that are being created or deleted."""

_MAX_NAME = 48


class Known(msgspec.Struct, frozen=True):
    """A store that exists and the directories it knows; ``inside`` its project or not."""

    path: Path
    id: str
    places: list[Place]
    inside: bool = False

    @property
    def project(self) -> Path | None:
        """The directory of the project, if the store knows one."""
        if self.inside:
            return self.path.parent
        return next((Path(place.path) for place in self.places if place.session is None), None)


class Match(msgspec.Struct, frozen=True):
    """A store that knows a directory: by path, by identity, or by both."""

    store: Path
    place: Place
    same_path: bool
    same_directory: bool


def state_directory(variables: Mapping[str, str]) -> Path:
    """Return the directory of stores outside their projects, following the XDG rules."""
    chosen = variables.get("XDG_STATE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "mulligan"
    home = variables.get("HOME") or os.path.expanduser("~")
    return Path(home).absolute() / ".local" / "state" / "mulligan"


def known_stores(state: Path) -> Iterator[Known]:
    """Yield the stores below a state directory, and the known ones inside their projects."""
    for directory in _entries(state / STORES):
        if not directory.name.startswith(".") and (known := _known(directory)):
            yield known
    for note in _entries(state / INSIDE):
        if (path := _noted(note)) and (known := _known(path, note.name)):
            yield known


def damaged_stores(state: Path) -> Iterator[tuple[Path, str]]:
    """Yield the stores below a state directory that cannot be read, and why."""
    for directory in _entries(state / STORES):
        if not directory.name.startswith("."):
            try:
                layout.read_format(directory)
            except (MulliganError, OSError) as error:
                yield directory, str(error)


def find_match(state: Path, directory: Path, known: Sequence[Known] | None = None) -> Match | None:
    """Return the store that knows a directory; None if none does.

    ``known`` are all stores, for callers that ask about several directories. The path decides, then
    the identity. Identity alone counts only where the filesystem reports creation times, because
    inode numbers are reused.
    """
    real, identity = directory.resolve(), identity_of(directory)
    found = []
    for one in known_stores(state) if known is None else known:
        for place in one.places:
            same_path = place.path == str(real)
            certain = identity.matches if same_path else identity.proves
            match = Match(one.path, place, same_path, certain(place.identity))
            if (same_path and place.session is None) or match.same_directory:
                found.append(match)
    return max(found, key=lambda match: (match.same_path, match.same_directory), default=None)


def find_by_id(state: Path, identity: str) -> Path | None:
    """Return the path of the store with an id."""
    return next((known.path for known in known_stores(state) if known.id == identity), None)


def make(
    state: Path,
    project: Path,
    new_journal: Callable[[Path], bytes],
    failpoint: FailpointHook = ignore,
) -> Path:
    """Create the store of a project; a rename makes it visible in one step.

    If several processes do this at once, one creates the store and the others return it.
    """
    with staged(state) as staging:
        # Under the lock: another process may have created the store while we waited.
        match = find_match(state, project)
        if match is not None and match.same_path and match.place.session is None:
            return match.store
        format_ = layout.create(staging, new_journal, failpoint)
        remember(staging, project, None, failpoint)
        return publish(staging, place_for(state, project, format_.id), failpoint)


def place_for(state: Path, project: Path, identity: str) -> Path:
    """Return the path for the store of a project, under a name that no other store has.

    A project that was copied together with its store has a store with the same id.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", project.resolve().name).strip(".-")[:_MAX_NAME]
    place = state / STORES / f"{clean or 'store'}-{identity[:ID_LENGTH]}"
    others = (place.with_name(f"{place.name}-{number}") for number in count(2))
    return next(free for free in chain([place], others) if not os.path.lexists(free))


def publish(staging: Path, target: Path, failpoint: FailpointHook = ignore) -> Path:
    """Rename a finished store to its final name."""
    # The rename is atomic: a reader sees no store, or a complete one.
    staging.rename(target)
    # The rename publishes the store; without this sync a power cut could undo it.
    layout.sync_directory(target.parent)
    failpoint(Failpoint.OUTSIDE_STORE_RENAMED)
    return target


@contextmanager
def staged(state: Path) -> Iterator[Path]:
    """Provide a temporary name for a store under construction; leftovers are deleted.

    No other process creates or moves a store meanwhile. First, the leftovers of killed processes
    are deleted.
    """
    stores = state / STORES
    stores.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(stores / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Held for the whole construction. It also makes the cleanup below safe: an unfinished store
        # seen under this lock has no living creator.
        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in _entries(stores):
            if left.name.startswith(UNFINISHED):
                layout.remove_tree(left)
            elif current(left) != left:
                discard(left)
        staging = stores / f"{UNFINISHED}{os.urandom(8).hex()}"
        try:
            yield staging
        finally:
            if staging.exists():
                layout.remove_tree(staging)
    finally:
        os.close(handle)


def note_inside(state: Path, store: Path) -> None:
    """Record where a store inside its project is, if possible.

    A sandbox that sees only the project cannot write this, and the store works without it.
    """
    notes = state / INSIDE
    with suppress(OSError):
        notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = notes / f".{os.urandom(8).hex()}"
        layout.write_file(temporary, os.fsencode(store) + b"\n")
        # Replaced as a whole: a reader never sees half a path.
        temporary.replace(notes / layout.read_format(store).id)


def is_noted(state: Path, store: Path) -> bool:
    """Whether a store inside its project was put there on request; ``mulligan.open`` notes none."""
    return (state / INSIDE / layout.read_format(store).id).is_file()


def remember_fork(state: Path, store: Path, directory: Path, session: str) -> None:
    """Record the directory of a fork in its store, so that it is found without its pointer."""
    remember(store, directory, session)
    if store.name == layout.NAME:
        # A lookup reads the stores that the state directory knows; one inside must be noted there.
        note_inside(state, store)


def current(store: Path) -> Path:
    """Return where a store is now; it has moved once its target exists.

    A target that does not exist, or is another store, belongs to a move that did not happen. So
    does the store of a copied project, which has the same id and may have taken the same name.
    """
    target = _noted(store / layout.MOVED)
    if target is None or target == store:
        return store
    known, here = _format(target), _format(store)
    is_same = known and here and known.id == here.id
    return target if is_same and _belongs_beside(target, store) else store


def _belongs_beside(target: Path, store: Path) -> bool:
    """Whether a store that was moved out of a project knows that very project."""
    if target.name == layout.NAME:
        return True
    place = project_of(target)
    try:
        return place is not None and (
            place.path == str(store.parent.resolve())
            or place.identity.matches(identity_of(store.parent))
        )
    except OSError:
        return False


def discard(store: Path) -> None:
    """Delete a store below a state directory; a partial store is never found."""
    if store.exists():
        gone = store.with_name(f"{UNFINISHED}{os.urandom(8).hex()}")
        # Rename first, so that a crash during the deletion leaves nothing under the store's name.
        store.rename(gone)
        layout.remove_tree(gone)


def _format(directory: Path) -> layout.Format | None:
    try:
        return layout.read_format(directory)
    except (MulliganError, OSError):
        return None  # damage is reported when the store is opened


def _known(directory: Path, identity: str | None = None) -> Known | None:
    """Return the store in a directory, if it exists and is the expected one."""
    found = _format(directory)
    if found is None or identity not in (None, found.id) or current(directory) != directory:
        return None
    return Known(directory, found.id, read_places(directory), identity is not None)


def _noted(note: Path) -> Path | None:
    try:
        return Path(os.fsdecode(note.read_bytes()).rstrip("\n"))
    except OSError:
        return None


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
