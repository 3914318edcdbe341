"""Opening a store: find its directory, check its format, connect its journal and its objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan import layout
from mulligan.clock import Clock, SystemClock
from mulligan.engine import Engine
from mulligan.errors import (
    DamagedJournal,
    MulliganError,
    NotAStore,
    NotAttached,
    PurgedContent,
    ReadOnlyStore,
)
from mulligan.failpoints import FailpointHook, ignore
from mulligan.journal.kv import KvJournal, check_ends, check_identity, claim
from mulligan.journal.lmdb.tables import LmdbTables, require_file
from mulligan.locate import registry
from mulligan.locate.find import agree, copied, find_in
from mulligan.locate.pointer import write_pointer
from mulligan.locate.project import project_of
from mulligan.locate.registry import STORES, state_directory
from mulligan.objects.packs import PackObjects
from mulligan.session import Session, arguments
from mulligan.session.environment import TOOLS_CACHE, EnvironmentReader
from mulligan.store import LEASE_TTL, Store, engine_of

if TYPE_CHECKING:
    from mulligan.journal.lock_owner import OnWait
    from mulligan.model import (
        Digest,
        Location,
    )
    from mulligan.workspace.capture.limits import CaptureLimits

MEMORY = "memory:"
NO_STATE = (
    "Nothing was made. `mulligan init --inside` keeps the store in the project itself; "
    "XDG_STATE_HOME names another place for stores."
)

NO_JOURNAL = "The packs are untouched. `mulligan verify --repair` rebuilds it from them."

STORE = "MULLIGAN_STORE"
SESSION = "MULLIGAN_SESSION"
AGENT = "MULLIGAN_AGENT"
EPOCH = "MULLIGAN_EPOCH"
WORKSPACE = "MULLIGAN_WORKSPACE"
HEARTBEAT = "MULLIGAN_HEARTBEAT"
CHECKPOINT_INTERVAL = "MULLIGAN_CHECKPOINT_INTERVAL"
PROMPT = "MULLIGAN_PROMPT"
HANDOVER = "MULLIGAN_HANDOVER"
RESTARTS = "MULLIGAN_RESTARTS"
SUPERVISOR_ID = "MULLIGAN_SUPERVISOR"
"""The process that started an agent: host, pid, start time; see ``leases.identity``."""


def open_store(
    path: str | os.PathLike[str],
    variables: Mapping[str, str],
    create: bool,
    keep_env: Iterable[str],
    clock: Clock | None,
    failpoint: FailpointHook,
    on_wait: OnWait | None = None,
    *,
    read_only: bool = False,
    salvage: bool = False,
    upkeep: bool = True,
) -> Store:
    """Open the store that a path names; see ``mulligan.open``.

    Without ``upkeep``, it is not looked after in the background.
    """
    read_only = read_only or salvage
    clock = clock or SystemClock()
    home, state = Path(variables.get("HOME") or os.devnull), state_directory(variables)
    if str(path) == MEMORY:
        from mulligan.journal.memory import MemoryTables  # a store on disk does not need them
        from mulligan.objects.memory import MemoryObjects

        journal = KvJournal(MemoryTables(failpoint=failpoint), failpoint=failpoint, clock=clock)

        def usable(digests: Iterable[Digest]) -> dict[Digest, Location]:
            with journal.read() as view:
                return view.locate_usable(digests)

        objects_ = MemoryObjects(usable, partial(replacement, journal))
        engine = Engine(journal, objects_, clock, failpoint=failpoint)
        environment = EnvironmentReader(Path.cwd(), variables, keep_env)
        return Store(engine, environment, home, None, state / STORES)
    place = Path(_directory(path)).absolute()
    found = find_in(place, state, write=create and not read_only)
    if found and found.pointer and not agree(found.store, found.pointer):
        raise copied(found.pointer, found.store)
    directory = found.store if found else place / layout.NAME
    format_ = _format(directory, create and not read_only, failpoint)
    engine = _engine(
        directory, format_, clock, failpoint, on_wait, read_only=read_only, salvage=salvage
    )
    if directory.name == layout.NAME and not engine.read_only:
        from mulligan.locate.git import guard  # most stores are outside of their projects

        with suppress(OSError):  # a store works without its guard
            guard(directory)
    _cancel_move(engine)
    # Before the caller sees the store: an interrupted fork is completed or removed first.
    _end_interrupted_forks(engine)
    cache = directory / "tmp" / TOOLS_CACHE
    environment = EnvironmentReader(_project(directory), variables, keep_env, cache)
    limits = _limits(directory, engine)
    if upkeep and not engine.read_only:
        from mulligan.upkeep.background import Maintenance  # a process that reads needs none

        engine.upkeep = Maintenance(engine)
    return Store(engine, environment, home, limits, state / STORES)


def _limits(directory: Path, engine: Engine) -> CaptureLimits | None:
    """Return the limits in the store's configuration, if it has one, after a check of it all."""
    config = layout.read_config(directory)
    if config is None:
        return None
    # Slow to import, and seldom needed.
    from mulligan.session.effect_rules import parse_rules
    from mulligan.upkeep.retention.policy import parse_policy
    from mulligan.upkeep.verify.settings import parse_verify
    from mulligan.workspace.capture.limits import parse_limits

    parse_verify(config.table("verify"), config.reader)
    # A mistake in it is refused at once: a policy that cannot be used would remove nothing.
    engine.effect_rules = parse_rules(config.table("effects"), config.reader)
    engine.storage.quota = parse_policy(config.table("retention"), config.reader).quota
    if drift := config.table("drift"):
        from mulligan.drift.table import parse_drift  # the same

        parse_drift(drift, config.reader)
    return parse_limits(config.table("workspace"), config.reader)


def _cancel_move(engine: Engine) -> None:
    """Cancel a move that was interrupted before it took effect, now that the store is in use.

    From now on, a copy at the target would be outdated. No move can run at the same time: it needs
    exclusive access to the store.
    """
    directory = engine.directory
    if directory is not None and not engine.read_only and registry.current(directory) == directory:
        # If it cannot be deleted, nothing is lost: the note names a target that does not exist.
        with suppress(OSError):
            (directory / layout.MOVED).unlink(missing_ok=True)


def _end_interrupted_forks(engine: Engine) -> None:
    """Finish or remove the directories of forks whose process died."""
    directory = engine.directory
    if directory is None or engine.read_only:
        return
    if any((directory / "tmp").glob(layout.FORK_NOTES)):
        # Imports what writes files, for a case that is rare.
        from mulligan.session.write.fork_directory import end_interrupted

        end_interrupted(engine)


def make_outside(directory: Path, state: Path, failpoint: FailpointHook = ignore) -> Path:
    """Create the store of a project in the state directory and return its path.

    A process that is killed here leaves either an unreferenced directory, or a store that knows its
    project, so that only the pointer is missing.
    """
    try:
        store = registry.make(state, directory, _new_journal, failpoint)
    except (OSError, ReadOnlyStore) as error:
        found = layout.translation(error, state) if isinstance(error, OSError) else error
        if isinstance(found, ReadOnlyStore):
            found = ReadOnlyStore(str(found), hint=NO_STATE)
        raise found from error
    try:
        write_pointer(directory, str(store), None, failpoint)
    except OSError as error:
        if not isinstance(layout.translation(error, directory), ReadOnlyStore):
            raise layout.translation(error, directory) from error
        # A read-only project can be checkpointed too; its store is found by the project's path.
    return store


def _project(directory: Path) -> Path:
    """Return the directory of a store's project, as recorded in the store."""
    place = project_of(directory)
    return Path(place.path) if place else directory.parent


def _directory(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path of a store's directory; what names a database elsewhere is refused."""
    named = arguments.directory(path, "The path of a store")
    scheme, separator, _ = os.fspath(named).partition("://")
    problem = None
    if separator:  # without the rest, which may have a password
        problem = f"'{scheme}://…' is a URL"
    elif scheme == ":memory:" and not Path(named).is_dir():
        problem = f"there is none named {scheme!r}"
    if problem is not None:
        raise NotAStore(
            f"A store is a directory, and {problem}.",
            hint=f"Nothing was made. Name a directory, or {MEMORY!r} for a store in memory.",
        )
    return named


def attach(variables: Mapping[str, str]) -> Session:
    """Return the session of the agent that this process was started for; see ``mulligan.attach``.

    The variables are those that ``agent_variables`` made.
    """
    missing = [name for name in (STORE, SESSION, AGENT, EPOCH) if not variables.get(name)]
    if missing:
        raise NotAttached(f"This process was not started by Mulligan: no {', '.join(missing)}.")
    store = open_store(variables[STORE], variables, False, (), None, ignore)
    name, agent, epoch = variables[SESSION], variables[AGENT], int(variables[EPOCH])
    if is_guest := _is_taken(store.session(name, False, actor=agent), epoch, variables):
        session = store.session(name, False, actor=agent)
        session.internal.join(epoch)
    else:
        place = variables.get(WORKSPACE) or None
        # force: the supervisor has accepted the directory already. The lease comes before the
        # recovery: a process that was replaced must not touch the files.
        session = store.session(
            name, False, actor=agent, workspace=place, force=True, recover=False
        )
        session.internal.adopt(epoch, LEASE_TTL)
        session.internal.recover_on_open()
    limit_by_workflow(store, session)
    session.internal.is_supervised = True
    session.internal.checkpoint_interval = float(
        variables.get(CHECKPOINT_INTERVAL) or session.internal.checkpoint_interval
    )
    if (heartbeat := variables.get(HEARTBEAT)) and not is_guest:
        from mulligan.session.runtime.heartbeat import HeartbeatWriter

        session.agent.heart = HeartbeatWriter(Path(heartbeat), _renewal(session))
        session.agent.heart.start()
    return session


def limit_by_workflow(store: Store, session: Session) -> None:
    """Take over the quota of the workflow that runs in a session, if it is the smaller one."""
    workflow = session.state.get("orchestrator/workflow")
    retention = workflow.get("retention") if isinstance(workflow, dict) else None
    quota = retention.get("quota") if isinstance(retention, dict) else None
    storage = engine_of(store).storage
    if isinstance(quota, int) and (storage.quota is None or quota < storage.quota):
        storage.quota = quota


def _is_taken(session: Session, epoch: int, variables: Mapping[str, str]) -> bool:
    """Whether the agent's process that started this one already holds the lease."""
    from mulligan.session.write.leases import this_process

    lease = session.internal.lease_of(session.actor)
    if lease is None or lease.epoch != epoch or not session.internal.is_held(session.actor):
        return False
    return str(lease.holder) not in (this_process(), variables.get(SUPERVISOR_ID))


def agent_variables(
    store: str,
    session: str,
    agent: str,
    epoch: int,
    *,
    heartbeat: Path,
    checkpoint_interval: float,
    workspace: Path | None = None,
    prompt: str | None = None,
    handover: str | None = None,
    restarts: int = 0,
) -> dict[str, str]:
    """Return the variables that tell a child process which agent it is."""
    from mulligan.session.write.leases import this_process

    found = {
        STORE: store,
        SESSION: session,
        AGENT: agent,
        EPOCH: str(epoch),
        HEARTBEAT: str(heartbeat),
        CHECKPOINT_INTERVAL: str(checkpoint_interval),
        WORKSPACE: str(workspace) if workspace else "",
        PROMPT: prompt or "",
        HANDOVER: handover or "",
        RESTARTS: str(restarts),
        SUPERVISOR_ID: this_process(),
    }
    return {name: value for name, value in found.items() if value}


def _renewal(session: Session) -> Callable[[], None]:
    """Return a function that renews the lease after a third of it, while the agent is busy."""
    due = session.internal.clock.monotonic() + LEASE_TTL / 3

    def renew() -> None:
        nonlocal due
        now = session.internal.clock.monotonic()
        if now < due:
            return
        due = now + LEASE_TTL / 3
        # A process that was replaced, or a full disk, is reported by the next write; this
        # thread has no caller to report it to.
        with suppress(MulliganError, OSError):
            session.internal.renew(wait=False)

    return renew


def _format(directory: Path, create: bool, failpoint: FailpointHook) -> layout.Format:
    if create and not (directory / layout.FORMAT).is_file():
        return layout.create(directory, _new_journal, failpoint)
    return layout.read_format(directory)


def _new_journal(directory: Path) -> bytes:
    """Create the journal of a new store and return the store's id in it."""
    from mulligan.objects.frames import pack_name
    from mulligan.objects.pack_writer import list_packs
    from mulligan.objects.scan import is_foreign

    tables = LmdbTables(directory)
    try:
        identity = claim(tables, os.urandom(16))
    finally:
        tables.close()
    # A store that lost its FORMAT alone is completed; its packs carry the journal's id.
    packs = directory.parent / "packs"
    if any(is_foreign(packs / pack_name(number), identity) for number in list_packs(packs)):
        raise NotAStore(
            f"{directory.parent} has a journal and packs from different stores.",
            hint=layout.ORPHANS_HINT,
        )
    return identity


def _check_tables(tables: LmdbTables, identity: bytes, salvage: bool) -> None:
    """Refuse the journal of another store, and one with outdated parts."""
    if not tables.damage:
        # Before any write: with a foreign journal, all packs would look unacknowledged.
        check_identity(tables, identity)
    if tables.is_unproven and not salvage:
        check_ends(tables)
        tables.mark_checked()


def replacement(journal: KvJournal, digest: Digest) -> Digest | None:
    """Return the object that a purge left in the place of another; see ``objects.protocol``."""
    with journal.read() as view:
        tombstone = view.tombstones([digest]).get(digest)
        if tombstone is None or tombstone.replacement is not None:
            return None if tombstone is None else tombstone.replacement
        purge = next(purge for purge in view.purges() if purge.number == tombstone.purge)
    raise PurgedContent(f"The content was {purge}.")


def _engine(
    directory: Path,
    format_: layout.Format,
    clock: Clock,
    failpoint: FailpointHook,
    on_wait: OnWait | None,
    *,
    read_only: bool,
    salvage: bool,
) -> Engine:
    identity = bytes.fromhex(format_.id)
    if not (directory / "journal").is_dir():
        raise DamagedJournal(f"The store at {directory} has no journal.", hint=NO_JOURNAL)
    read_only = read_only or not os.access(directory, os.W_OK)
    if not (read_only or salvage):
        # FORMAT is written after the journal, so a missing file was lost. LMDB would make a new,
        # empty one, which hides what happened.
        require_file(directory / "journal")
    tables = LmdbTables(
        directory / "journal",
        read_only=read_only,
        salvage=salvage,
        failpoint=failpoint,
        on_wait=on_wait,
    )
    try:
        _check_tables(tables, identity, salvage)
    except BaseException:
        tables.close()
        raise
    journal = KvJournal(tables, failpoint=failpoint, clock=clock)

    def locate(digest: Digest) -> Location | None:
        with journal.read() as view:
            return view.locate(digest)

    def locate_all(digests: Iterable[Digest]) -> dict[Digest, Location]:
        with journal.read() as view:
            return view.locate_all(digests)

    def locate_usable(digests: Iterable[Digest]) -> dict[Digest, Location]:
        with journal.read() as view:
            return view.locate_usable(digests)

    def committed(area: int) -> int:
        with journal.read() as view:
            return view.area_length(area)

    def last_forgotten() -> int:
        with journal.read() as view:
            return view.last_forgotten_area()

    objects = PackObjects(
        directory / "packs",
        identity,
        locate,
        committed,
        locate_all=locate_all,
        locate_usable=locate_usable,
        last_forgotten=last_forgotten,
        replacement=partial(replacement, journal),
        failpoint=failpoint,
        read_only=read_only,
    )
    features = format_.features
    return Engine(
        journal,
        objects,
        clock,
        directory,
        failpoint,
        read_only=read_only,
        features=features,
        on_wait=on_wait,
    )
