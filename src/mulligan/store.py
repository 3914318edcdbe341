"""The store: the open handle on everything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mulligan.document.fold import CREATED, small_event
from mulligan.errors import InvalidConfig, InvalidName, KeyTaken, UnknownSession
from mulligan.layout import CONFIG, NAME
from mulligan.session import Session
from mulligan.session.arguments import directory, seconds, text
from mulligan.session.names import PLAIN, check_agent, check_key, check_name

if TYPE_CHECKING:  # imported where they are used: a command that only looks needs few of them
    from mulligan.engine import Engine
    from mulligan.journal.protocol import Txn
    from mulligan.model import Report, SessionRecord
    from mulligan.session.environment import EnvironmentReader
    from mulligan.workspace.capture.limits import CaptureLimits
    from mulligan.workspace.root_state import RootStates
    from mulligan.workspace.workspace import Workspace

LEASE_TTL = 30.0
"""Seconds until a lease that is not renewed can be taken over."""

HOLD_TTL = 86_400.0
"""The same for a lease that names another process: a person may leave that idle for long."""


class Store:
    """An open store and its sessions, from ``mulligan.open(path)``.

    Handles are cheap to share between threads and survive ``fork``; several processes may
    have the same store open. Use it as a context manager, or call :meth:`close`.
    """

    def __init__(
        self,
        engine: Engine,
        environment: EnvironmentReader,
        home: Path,
        limits: CaptureLimits | None,
        stores: Path,
    ) -> None:
        """Combine the parts of a store; ``stores`` is the directory of stores outside projects.

        Without ``limits``, those of a store without a configuration apply.
        """
        self._engine = engine
        self._stores = {place.resolve() for place in (stores, engine.directory) if place}
        self._environment_reader = environment
        self._home = home
        self._limits = limits
        self._roots: RootStates | None = None

    def __repr__(self) -> str:
        return f"<Store {self.path or 'memory:'!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def path(self) -> str | None:
        """The store's directory; None for one in memory."""
        return None if self._engine.directory is None else str(self._engine.directory)

    def check_present(self) -> None:
        """Raise ``StoreGone`` if the store was removed or replaced since it was opened.

        Every write checks this too. For long-lived processes that only read.
        """
        self._engine.check_present()

    def session(
        self,
        name: str,
        create: bool = True,
        *,
        actor: str = PLAIN,
        workspace: str | os.PathLike[str] | None = None,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
        recover: bool = True,
        key: str | None = None,
    ) -> Session:
        """Return the session of that name, created if missing unless ``create`` is false.

        With ``workspace``, its checkpoints also hold the files of that directory, and restores
        bring them back. The root of the filesystem, the home directory and the parents of the
        store's directory are refused unless ``force``. A restore of files that another process
        did not finish is completed here. If that fails, for example because the disk is full,
        ``session.files.pending`` is that restore, ``session.files.recovery_error`` the reason.
        ``recover=False`` leaves it alone, for programs that only read. ``progress`` is called
        repeatedly with the number of files and bytes that a capture has read.

        ``key`` is an id from elsewhere that a new session gets and by which :meth:`find` returns
        it. Raises ``KeyTaken`` if another session has it, or if this one has none or another.

        Events are written under the name ``actor``, and no lease keeps other handles from
        writing. :meth:`agent` opens a session as the only writer of an agent.
        """
        check_name(name, "session name")
        check_name(actor, "actor")
        session = self._open(name, create, actor, workspace, force, progress, key)
        if recover:
            session.internal.recover_on_open()
        return session

    def agent(
        self,
        name: str,
        *,
        session: str,
        create: bool = True,
        ttl: float | None = None,
        steal: bool = False,
        process: int | None = None,
        workspace: str | os.PathLike[str] | None = None,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
        recover: bool = True,
        key: str | None = None,
    ) -> Session:
        """Open a session as the only writer of the agent ``name``.

        The handle takes the agent's lease for ``ttl`` seconds; every write renews it. While
        another live process holds it, this raises ``LeaseHeld``, unless ``steal``: then the writes
        of that process are refused from now on. ``Session.close`` releases the lease. An agent
        cannot be named ``main`` or ``cli``: handles without a lease and commands write under these
        names. The other arguments are those of :meth:`session`.

        ``process`` is the agent if that is another process of this machine, such as one whose
        hooks write for it: the lease names that process, all its writers share it, and it is found
        as interrupted when that process dies. It then lasts for a day without a write, and closing
        the handle does not release it; see ``Internals.hold``.
        """
        check_name(session, "session name")
        default = LEASE_TTL if process is None else HOLD_TTL
        length = seconds(default if ttl is None else ttl, "A lease")
        writer = self._agent(session, name)
        opened = self._open(session, create, writer, workspace, force, progress, key)
        if process is None:
            opened.internal.take(length, steal=steal)
        else:
            opened.internal.hold(process, length, steal=steal)
        if recover:
            opened.internal.recover_on_open()
        return opened

    def _open(
        self,
        name: str,
        create: bool,
        actor: str,
        workspace: str | os.PathLike[str] | None,
        force: bool,
        progress: Callable[[int, int], None] | None,
        key: str | None,
    ) -> Session:
        if workspace is not None:
            directory(workspace, "The workspace")
        record = self._record(name, create, actor, None if key is None else check_key(key))
        files = None
        if workspace is not None:
            files = self._workspace(Path(workspace), force, progress)
        return Session(self._engine, record, actor, self._environment_reader, files)

    def find(self, key: str) -> Session | None:
        """Return the session that was made with a key; None if there is none.

        It is opened as :meth:`session` does without options; open it by its name for others.
        """
        with self._engine.read() as view:
            record = view.keyed_session(check_key(key))
        if record is None:
            return None
        return Session(self._engine, record, PLAIN, self._environment_reader)

    def sessions(self, prefix: str = "") -> list[Session]:
        """Return the sessions whose names begin with the prefix, oldest first; by default all.

        What has other names is not read.
        """
        text(prefix, "A prefix", InvalidName)
        with self._engine.read() as view:
            if prefix:
                records = [view.session(n) for n in sorted(view.names(prefix).values())]
            else:
                records = view.sessions()
        return [
            Session(self._engine, record, PLAIN, self._environment_reader)
            for record in records
            if record.deleted is None
        ]

    def copy(self, name: str, new_name: str, *, key: str | None = None) -> Session:
        """Make a session that continues from the newest event of another, and share its storage.

        The same as a fork of that event: the past is the same, later events are not, and either
        may be deleted without the other. ``key`` is as in :meth:`session`.
        """
        session = self.session(name, create=False)
        return session.fork(session.head.seq, check_name(new_name, "session name"), key=key)

    def delete(self, name: str) -> None:
        """Delete a session: it cannot be opened any more, and its name and its key are free.

        Its forks stay whole. What nothing else needs of its events and files is erased by the next
        garbage collection, such as ``mulligan prune`` runs. It cannot be undone. Raises
        ``LeaseHeld`` while a process writes for one of its agents, and ``RestorePending`` while a
        restore of files needs it. Handles that are open elsewhere can no longer write.
        """
        from mulligan.session.write.delete import delete_session  # few programs need it

        delete_session(self._engine, check_name(name, "session name"))

    def verify(
        self,
        full: bool = True,
        progress: Callable[[str], None] | None = None,
        *,
        sample: float | None = None,
        seed: int | None = None,
        on_read: Callable[[int], None] | None = None,
    ) -> Report:
        """Check everything in the store and report exactly what is broken.

        Without ``full``, only the structure is checked: every event and its chain, every index,
        every page of the journal, the place of every object, and that everything exists that
        something refers to. With ``full``, also every stored byte, and that states and keyframes
        agree. ``sample``, from 0 to 1, checks the structure and a random part of the stored bytes;
        the same ``seed`` chooses the same part. ``progress`` is called with what is being checked,
        ``on_read`` with the number of stored bytes that were just read.

        Damaged objects are noted, unless the store is open for reading only: the next capture of a
        file with that content stores it again.
        """
        from mulligan.check.bodies import Sample  # slow to import, and few commands need them
        from mulligan.check.verify import note_findings, verify

        if sample is not None and not 0 < sample <= 1:
            raise ValueError(f"A sample is more than 0 and at most 1, not {sample}.")
        self.check_present()  # or its files would be reported as lost
        chosen = None
        if sample is not None:
            chosen = Sample(sample, int.from_bytes(os.urandom(4)) if seed is None else seed)
        report = verify(
            self._engine,
            full=full and chosen is None,
            sample=chosen,
            progress=progress or (lambda _: None),
            on_read=on_read or (lambda _: None),
        )
        if not self._engine.read_only:
            note_findings(self._engine, report)
        return report

    def maintain(self, budget_seconds: float = 1.0) -> None:
        """Look after the store now, if that is due, for about this many seconds.

        Programs that run for long need not call it: it happens after checkpoints, in a thread. It
        is for programs that start often and end soon. Errors are shown by ``mulligan status``.
        """
        if self._engine.upkeep is not None:
            self._engine.upkeep.maintain(seconds(budget_seconds, "A budget"))

    def close(self) -> None:
        """Release the store. Idempotent."""
        self._engine.close()

    def _workspace(
        self,
        root: Path,
        force: bool,
        progress: Callable[[int, int], None] | None,
    ) -> Workspace:
        from mulligan.workspace.capture.limits import CaptureLimits
        from mulligan.workspace.capture.progress import untold
        from mulligan.workspace.root_state import RootStates
        from mulligan.workspace.workspace import Workspace, check_root

        real = check_root(root, self._engine.directory, self._home, force=force)
        tell, limits = progress or untold, self._limits or CaptureLimits()
        if limits.snapshot.has_commands:
            _refuse_commands(real, self._engine.directory)
        if self._roots is None:
            self._roots = RootStates()
        return Workspace(
            real,
            self._engine,
            limits,
            self._engine.failpoint,
            tell,
            self._stores,
            self._roots,
        )

    def _agent(self, session: str, agent: str) -> str:
        """Return an agent's name if it is allowed; a name with an earlier lease stays allowed."""
        name = check_name(agent, "agent name")
        with self._engine.read() as view:
            record = view.find(session)
            known = record is not None and view.lease(record.number, name) is not None
        return name if known else check_agent(name)

    def _record(self, name: str, create: bool, actor: str, key: str | None = None) -> SessionRecord:
        with self._engine.read() as view:
            record = view.find(name)
        if record is None:
            if not create:
                raise UnknownSession(f"There is no session {name!r}.")
            # Looked up again in the transaction: another process may have created it meanwhile.
            with self._engine.write() as txn:
                record = txn.find(name) or self._made(txn, name, actor, key)
        if key is not None and record.key != key:
            has = "no key" if record.key is None else f"the key {record.key!r}"
            raise KeyTaken(f"There is a session {name!r} already, and it has {has}.")
        return record

    def _made(self, txn: Txn, name: str, actor: str, key: str | None) -> SessionRecord:
        now = self._engine.clock.now()
        record = txn.create(name, now, None, key)
        made = small_event(CREATED, {"name": name} if key is None else {"name": name, "key": key})
        txn.append(record.number, [made], actor=actor, epoch=0, time=now)
        return record


def environment_of(store: Store) -> EnvironmentReader:
    """Return what reads the environment for checkpoints, for Mulligan itself; no public API."""
    return store._environment_reader


def engine_of(store: Store) -> Engine:
    """Return the engine of a store, for Mulligan itself; no public API."""
    return store._engine


def _refuse_commands(root: Path, store: Path | None) -> None:
    """Refuse commands of a store inside the workspace: it may come from a clone or an archive."""
    if store is None:
        return
    real = store.resolve()
    if root in real.parents or (real.name == NAME and root.is_relative_to(real.parent)):
        raise InvalidConfig(
            f"{real / CONFIG} names commands, and any program that can write files of {root} "
            "could change them.",
            hint="Nothing was run. Commands are run only for a store outside of the project: look "
            "at the file, then run `mulligan move-store`. Or delete the commands from it.",
        )
