"""Make the store of a directory, or give it an existing one; what ``mulligan init`` does.

Everything comes from arguments: ``variables`` are those of the environment that name the home and
the state directory, so that a server can do this for other users. Killed at any moment, a call
leaves no store, or one that the next call finds and completes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mulligan import layout
from mulligan.errors import StoreNotFound, UnsafeWorkspace
from mulligan.failpoints import ignore
from mulligan.locate.find import Found, agree, copied, find_in
from mulligan.locate.pointer import write_pointer
from mulligan.locate.project import remember
from mulligan.locate.registry import note_inside, state_directory
from mulligan.opener import NO_STATE, make_outside, open_store
from mulligan.session.names import PLAIN
from mulligan.store import Store
from mulligan.workspace.workspace import check_root

FIRST_SESSION = "main"


class StoreMade(msgspec.Struct, frozen=True):
    """The store that a directory now has.

    ``found`` says how it was found, if it was there already. ``replaced`` is the store that the
    directory had before it adopted this one; it is kept. ``above`` is the nearest parent directory
    with a store, which covered this directory until now; only set for a new store.
    """

    store: Path
    directory: Path
    is_new: bool
    sessions: list[str]
    found: Found | None = None
    replaced: Path | None = None
    above: Path | None = None


def make_store(
    directory: Path,
    variables: Mapping[str, str],
    *,
    inside: bool = False,
    session: str | None = None,
    actor: str = PLAIN,
    force: bool = False,
) -> StoreMade:
    """Make the store of a directory, with a first session; idempotent.

    The store is outside of the directory unless ``inside``. ``session`` is created if it is
    missing. Raises ``UnsafeWorkspace`` for the home directory, ``/``, and a directory that contains
    the stores themselves, unless ``force``, and for a copied directory.
    """
    root, state = directory.absolute(), state_directory(variables)
    found = find_in(root, state, write=True)
    if found and found.pointer and not agree(found.store, found.pointer):
        raise copied(found.pointer, found.store)
    # A store inside whose creation was interrupted has no FORMAT yet, and is completed below.
    is_new = found is None or not (found.pointer or (found.store / layout.FORMAT).is_file())
    if found is None or is_new:
        if not force:
            _refuse_unsafe(root, variables, inside=inside)
        path = _create(root, variables, inside=inside)
    else:
        path = found.store
    sessions = _with_session(path, variables, session, actor)
    above = next((d for d in root.parents if (d / layout.NAME).exists()), None)
    return StoreMade(path, root, is_new, sessions, found, above=above if is_new else None)


def adopt_store(
    directory: Path,
    store: Path,
    variables: Mapping[str, str],
    *,
    session: str | None = None,
    actor: str = PLAIN,
    force: bool = False,
) -> StoreMade:
    """Make an existing store the one of a directory, whatever its project was.

    Raises ``UnsafeWorkspace`` as ``make_store`` does, and if the store, or the present one of the
    directory, is inside a project: such a store belongs to the directory around it.
    """
    root, store = directory.absolute(), store.absolute()
    replaced = _other(root, store, state_directory(variables))
    if not force:
        _refuse_unsafe(root, variables, inside=False)
    if not store.is_dir():
        hint = "Nothing was changed. `mulligan stores` lists all stores."
        raise StoreNotFound(f"There is no store at {store}.", hint=hint)
    layout.read_format(store)
    if store.name == layout.NAME or (root / layout.NAME).is_dir():
        raise UnsafeWorkspace(
            f"{root} cannot adopt {store}: a store inside a project belongs to that directory.",
            hint="Nothing was changed. `mulligan move-store --outside` moves it out first.",
        )
    # The store's record before the pointer: a pointer without a matching record would be refused
    # as a copy, while a store that knows a directory puts the pointer back.
    remember(store, root)
    write_pointer(root, str(store))
    sessions = _with_session(store, variables, session, actor)
    return StoreMade(store, root, False, sessions, replaced=replaced)


def _create(root: Path, variables: Mapping[str, str], *, inside: bool) -> Path:
    state = state_directory(variables)
    # A store that was started inside the project is completed there.
    if not inside and root.name != layout.NAME and not os.path.lexists(root / layout.NAME):
        root.mkdir(parents=True, exist_ok=True)
        return make_outside(root, state)
    with _opened(root, variables, create=True) as store:
        path = Path(str(store.path))
    if inside:
        note_inside(state, path)
    return path


def _with_session(
    path: Path, variables: Mapping[str, str], name: str | None, actor: str
) -> list[str]:
    """Create the named session, or the first one of an empty store; return all names."""
    with _opened(path, variables, create=False) as store:
        known = [session.name for session in store.sessions()]
        chosen = name or (None if known else FIRST_SESSION)
        if chosen is not None and chosen not in known:
            store.session(chosen, actor=actor)
        return [session.name for session in store.sessions()]


def _opened(path: Path, variables: Mapping[str, str], *, create: bool) -> Store:
    return open_store(path, variables, create, (), None, ignore)


def _other(root: Path, store: Path, state: Path) -> Path | None:
    """Return the store of a directory if it is a different one."""
    try:
        found = find_in(root, state, write=False) if root.is_dir() else None
    except StoreNotFound:  # its pointer leads nowhere
        return None
    return found.store if found and found.store.resolve() != store.resolve() else None


def _refuse_unsafe(root: Path, variables: Mapping[str, str], *, inside: bool) -> None:
    """Refuse a directory that later calls would refuse as a workspace, or that holds the stores."""
    place = root.parent if root.name == layout.NAME else root
    home = Path(variables.get("HOME") or os.devnull)
    try:
        if place.is_dir():
            check_root(place, None, home, force=False)
    except UnsafeWorkspace as error:
        raise UnsafeWorkspace(
            str(error),
            hint="No store was made. `mulligan init DIR` makes one for one project. With --force "
            "it is made here, and commands that work on files then need --no-files or --force.",
        ) from error
    if not inside:
        _refuse_around_stores(root, state_directory(variables))


def _refuse_around_stores(directory: Path, state: Path) -> None:
    """Refuse a project that contains the stores: deleting its files would delete them."""
    state, real = state.resolve(), directory.resolve()
    if real.name != layout.NAME and state.is_relative_to(real):
        raise UnsafeWorkspace(
            f"The directory of the stores, {state}, is inside {real}.", hint=NO_STATE
        )
