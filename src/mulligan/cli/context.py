"""How a command was called: which store, which session, and how to print."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mulligan import Session, Store
    from mulligan.cli.render.progress import ProgressLine
    from mulligan.journal.lock_owner import LockOwner, OnWait
    from mulligan.session_directory import Standing
    from mulligan.workspace.capture.progress import Progress

ACTOR = "cli"
"""The actor name of commands, which tells a person's writes from an agent's."""

UNSAFE_HINT = (
    "Nothing was touched. --no-files leaves the files out; --force takes all of them, "
    "if you are sure. Better: a store in the directory of one project, by `mulligan init DIR`."
)

T = TypeVar("T")


class CliContext:
    """The options that every command shares."""

    def __init__(self, *, store_path: str = "", quiet: bool = False) -> None:
        self.store: str | None = None
        self.session: str | None = None
        self.json = False
        self.quiet = quiet
        self.no_files = False
        self.force = False
        self.store_path = store_path
        """Where the store is, once it is opened."""
        self.directory: Path | None = None
        """Where the files of the session are, once it is opened with them."""
        self.project: Path | None = None
        """The directory that the store was found by, once it is opened."""
        self.has_pointer = True
        """Whether that directory names its store; a read-only one may not."""
        self._standing: Standing | None = None
        self._line: ProgressLine | None = None

    def open_store(
        self,
        *,
        for_agents: bool = False,
        read_only: bool = False,
        salvage: bool = False,
        on_wait: OnWait | None = None,
    ) -> Store:
        """Open the store that was named, or the nearest one upward; never make one.

        ``for_agents`` first ends stopped agents whose supervisor is dead: they may hold a lock
        that opening needs. It also sends what this process does to OpenTelemetry, if that is set
        up. ``read_only`` waits for no lock, and ``salvage`` reads the intact parts of a damaged
        store. ``on_wait`` is called with the owner of a lock that this process waits for; by
        default, the owner is printed.
        """
        import mulligan
        from mulligan.cli.find_store import nearest_store, state_home, tell_of_finding
        from mulligan.locate.find import Note, find_in
        from mulligan.session_directory import Standing

        state, here = state_home(), Path.cwd()
        found = find_in(_path(self.store), state, write=True) if self.store else None
        if not self.store:
            found = nearest_store(here)
        there = found.store if found else _path(self.store or "")
        pointer = found.pointer if found else None
        self._standing = Standing(here, state, pointer, bool(self.store), tell_of_finding)
        if found is not None:
            tell_of_finding(found)
            self.has_pointer = found.note is not Note.NOT_PUT_BACK
        if for_agents:
            _end_frozen(there)
        store = mulligan.open(
            there,
            create=False,
            read_only=read_only,
            salvage=salvage,
            on_wait=on_wait or _report_wait,
        )
        click.get_current_context().call_on_close(store.close)
        if for_agents:
            from mulligan.cli.telemetry import send_telemetry

            send_telemetry(store)
        self.store_path = str(store.path)
        self.project = found.directory if found else Path(self.store_path).parent
        return store

    def open_to_look(self) -> Session:
        """Open the named session only for reading, without waiting for writers."""
        return self.open_session(store=self.open_store(read_only=True))

    def open_session(
        self,
        create: bool | None = None,
        *,
        files: bool = False,
        recover: bool = True,
        actor: str = ACTOR,
        store: Store | None = None,
    ) -> Session:
        """Open the named session, or the only one that can be meant.

        ``create`` is None for commands that only read; for those that write, it says whether
        ``--create`` was given. ``files`` also opens the workspace, unless ``--no-files`` was given.
        With ``recover``, an interrupted restore of files is then finished.
        """
        from mulligan.errors import UnknownSession

        store = store or self.open_store()
        name = self.session or self._pointed_to() or self._chosen(store, create=bool(create))
        try:
            session = store.session(name, create=bool(create), actor=actor)
        except UnknownSession as error:
            raise _unknown(store, name, error.hint, may_create=create is not None) from error
        if not files or self.no_files:
            return session
        opened = self._with_files(store, session)
        if recover and self.directory is not None:
            self.recover(opened)
        return opened

    def open_running(self) -> Session:
        """Open the named session, or else the one that a supervisor runs.

        A process that is stopped inside a write is an error: the supervisor cannot answer.
        """
        from mulligan.default_session import DEFAULT_SESSION, listing
        from mulligan.errors import UnknownSession
        from mulligan.session.names import SUPERVISOR

        store = self.open_store(on_wait=_refuse_to_wait)
        name = self.session or self._pointed_to()
        running = (
            [s.name for s in store.sessions() if s.internal.is_held(SUPERVISOR)] if not name else []
        )
        if len(running) > 1:
            raise UnknownSession(
                f"Several sessions are running:{listing(running)}",
                hint="No request was sent. Choose one with -s NAME, or set MULLIGAN_SESSION.",
            )
        if running and running[0] != DEFAULT_SESSION and not self.quiet:
            from mulligan.cli.render.text import clean

            click.echo(clean(f"The running session is {running[0]}."), err=True)
        chosen = name or (running[0] if running else self._chosen(store))
        return self.known_session(store, chosen)

    def open_for_agent(
        self, agent: str | None = None, create: bool | None = None, *, files: bool = False
    ) -> Session:
        """Open the session to write as an agent: the named one, or the one that runs this command.

        Inside ``mulligan run``, that is the agent which started the command. Its writes are
        refused once that agent has been replaced.
        """
        known = {key: os.environ.get(f"MULLIGAN_{key}") for key in ("SESSION", "AGENT", "EPOCH")}
        name = agent or known["AGENT"] or ACTOR
        session = self.open_session(create, actor=name, files=files)
        if known["EPOCH"] and (session.name, name) == (known["SESSION"], known["AGENT"]):
            session.internal.join(int(known["EPOCH"]))
        return session

    def open_for_agents(self, name: str | None = None) -> tuple[Store, Session, Path | None]:
        """Open the store and the session for agents; return them with the directory of its files.

        ``name`` is the session that a workflow names; it is created if missing.
        """
        from mulligan.default_session import choose_session

        store = self.open_store(for_agents=True)
        chosen = self.session or name or self._pointed_to() or choose_session(store, create=True)
        session = store.session(chosen, actor=ACTOR)
        return store, session, self.files_of(store, session)

    def files_of(self, store: Store, session: Session) -> Path | None:
        """Return the directory of a session's files; None with ``--no-files``."""
        from mulligan.session_directory import workspace_of

        if self.no_files or self._standing is None:
            return None
        return workspace_of(store, session, self._standing, force=self.force)

    def known_session(self, store: Store, name: str) -> Session:
        """Open a session that must exist."""
        from mulligan.errors import UnknownSession

        try:
            return store.session(name, create=False, actor=ACTOR)
        except UnknownSession as error:
            raise _unknown(store, name, error.hint, may_create=False) from error

    @contextmanager
    def working(self) -> Iterator[None]:
        """Show the progress of long work inside, on a terminal."""
        try:
            yield
        finally:
            if self._line is not None:
                self._line.clear()

    def current_session(self, store: Store) -> str | None:
        """Return the session that a command without --session uses; None if there is none."""
        from mulligan.errors import UnknownSession

        with suppress(UnknownSession):
            return self.session or self._pointed_to() or self._default(store)
        return None

    def _chosen(self, store: Store, *, create: bool = False) -> str:
        """Choose a session, and name it if another one could have been meant."""
        from mulligan.default_session import DEFAULT_SESSION

        name = self._default(store, create=create)
        if name != DEFAULT_SESSION and len(store.sessions()) > 1 and not self.quiet:
            from mulligan.cli.render.streams import wrapped
            from mulligan.cli.render.text import clean

            used = sum(session.head.seq > 1 for session in store.sessions())
            which = "the only one in use" if used == 1 else "the newest of a coding agent"
            said = f"Using session {clean(name)}, {which}; -s NAME chooses another."
            click.echo(wrapped(said, 0), err=True)
        return name

    def _default(self, store: Store, *, create: bool = False) -> str:
        """Return ``main``; while that is missing or empty, the session that is in use.

        Coding agents make a session for each conversation: the newest one here is meant.
        """
        from mulligan.default_session import DEFAULT_SESSION, choose_session
        from mulligan.errors import UnknownSession

        refused = None
        try:
            name = choose_session(store, create=create)
        except UnknownSession as error:
            name, refused = DEFAULT_SESSION, error
        used = {session.name for session in store.sessions() if session.head.seq > 1}
        if used and name not in used and not create:
            from mulligan.coding.rewind.find_session import newest_agent_session

            newest = newest_agent_session(store, self.project)
            if newest is not None:
                return newest.name
        if refused is not None:
            raise refused
        return name

    def _pointed_to(self) -> str | None:
        pointer = self._standing and self._standing.pointer
        return pointer.session if pointer else None

    def recover(self, session: Session) -> None:
        """Finish an interrupted restore of files, and report it, or why it cannot be."""
        from mulligan.session.write.capture_guard import RECOVERY_ERRORS

        # A restore that cannot be finished is reported below; the command still does its work.
        with self.working(), suppress(*RECOVERY_ERRORS):
            session.files.recover()
        if session.internal.recovered or session.files.recovery_error:
            from mulligan.cli.render.pending import tell_of_recovery, tell_of_recovery_error

            if session.internal.recovered:
                tell_of_recovery(session.internal.recovered)
            if session.files.recovery_error:
                tell_of_recovery_error(session)

    def _with_files(self, store: Store, session: Session) -> Session:
        """Open a session again together with its workspace."""
        from mulligan.errors import UnsafeWorkspace

        root = self.files_of(store, session)
        if root is None:
            return session
        name, force, progress = session.name, self.force, self._progress()
        try:
            with self.working():
                opened = store.session(
                    name,
                    create=False,
                    actor=ACTOR,
                    workspace=root,
                    force=force,
                    progress=progress,
                    recover=False,
                )
        except UnsafeWorkspace as error:
            raise UnsafeWorkspace(str(error), hint=UNSAFE_HINT) from error
        click.get_current_context().call_on_close(opened.close)
        self.directory = root
        return opened

    def _progress(self) -> Progress | None:
        from mulligan.cli.render.progress import ProgressLine, can_show_progress

        if self._line is None and can_show_progress() and not self.quiet:
            self._line = ProgressLine()
        return None if self._line is None else self._line.read

    @property
    def bare(self) -> bool:
        """Whether to print only the result: in scripts, and with --quiet."""
        return self.quiet or not sys.stdout.isatty()


class PointText(click.types.StringParamType):
    """A text that names a point, so that shells can complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the points that complete the typed text."""
        from mulligan.cli.completion import points

        return points(ctx, incomplete)


class LabelText(click.types.StringParamType):
    """A text that is a label, so that shells can complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the labels that complete the typed text."""
        from mulligan.cli.completion import labels

        return labels(ctx, incomplete)


class SessionText(click.types.StringParamType):
    """A text that names a session, so that shells can complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the sessions that complete the typed text."""
        from mulligan.cli.completion import sessions

        return sessions(ctx, incomplete)


def _make_completable(param: click.Parameter) -> None:
    """Let shells complete a parameter; its name or metavar says what it is."""
    words = {str(param.metavar or param.name).strip("[]").upper(), param.name}
    for kind, texts in (
        (PointText, {"POINT", "A", "B"}),
        (LabelText, {"LABEL"}),
        (SessionText, {"SESSION"}),
    ):
        if words & texts and isinstance(param.type, click.types.StringParamType):
            param.type = kind()


class SharedOptions(click.Command):
    """A command that also takes the shared options after its name, where people type them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            _make_completable(param)
        self.params += shared_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; a parser error names the command it belongs to."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


class Command(SharedOptions):
    """One command."""


class Group(SharedOptions, click.Group):
    """A command of commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of definition."""
        return list(self.commands)


def shared_options(environment: bool = False) -> list[click.Parameter]:
    """Return the options of every command; the top-level ones read the environment."""
    store = "MULLIGAN_STORE" if environment else None
    session = "MULLIGAN_SESSION" if environment else None
    return [
        _shared("--store", metavar="PATH", envvar=store, help="Use the store in this directory."),
        _shared(
            "-s",
            "--session",
            metavar="NAME",
            envvar=session,
            type=SessionText(),
            help="Use this session.",
        ),
        _shared("--json", is_flag=True, help="Print JSON; `mulligan help json`."),
        _shared("-q", "--quiet", is_flag=True, help="Print only ids, names and values."),
    ]


def create_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--create`` to a command that writes: without it, a mistyped name is an error."""
    return click.option("--create", is_flag=True, help="Create the session if it does not exist.")(
        function
    )


def force_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--force`` to a command that works on files."""
    help_text = "Accept a directory that is refused as a workspace."
    return _flag("--force", help_text)(function)


def dry_run_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--dry-run`` to a command that restores something."""
    text = "Show what would change, and change nothing."
    return click.option("--dry-run", is_flag=True, help=text)(function)


def yes_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--yes`` to a command that asks on a terminal."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def accept_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--accept-left-behind`` to a command that goes back to a point."""
    text = "Accept that effects after the point stay in the world."
    return click.option("--accept-left-behind", "accept", is_flag=True, help=text)(function)


def touch_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--touch`` to a command that restores files."""
    text = "Give restored files the current time, for builds that compare times."
    return click.option("--touch", is_flag=True, help=text)(function)


def agent_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--agent`` to a command that writes as an agent."""
    return click.option(
        "--agent",
        metavar="NAME",
        help="Write as this agent; default inside `mulligan run`: its agent.",
    )(function)


def files_options(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--no-files`` and ``--force`` to a command that works on files as well."""
    return _flag("--no-files", "Leave the files out; use only the state.")(force_option(function))


def example(*lines: str) -> str:
    """Return the examples at the end of a help text."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("MULLIGAN_DEBUG", "0") not in ("", "0")


def colour() -> bool | None:
    """Return False if colours are unwanted, None if the terminal decides."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return False if unwanted else None


def _flag(name: str, text: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    return click.option(name, is_flag=True, expose_value=False, callback=_remember, help=text)


def _shared(*names: str, **settings: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_remember, **settings)


def _remember(context: click.Context, option: click.Parameter, value: Any) -> Any:
    if value and option.name:
        setattr(context.ensure_object(CliContext), option.name, value)
    return value


def warn_of_agents(session: Session) -> None:
    """Warn of agents at work: they continue on the restored state and files."""
    known = session.state.get("agents")
    names = (
        [name for name in known if session.internal.is_held(name)]
        if isinstance(known, dict)
        else []
    )
    if names:
        from mulligan.cli.render.text import Cell, clean

        said = f"Warning: {', '.join(names)} {'is' if len(names) == 1 else 'are'} at work here"
        said += " and will continue on what is restored; `mulligan pause` stops a team first."
        click.echo(Cell(clean(said), "yellow").styled(), err=True)


def _refuse_to_wait(holder: LockOwner | None) -> None:
    """Raise ``NotRunning`` for a stopped process; report any other."""
    from mulligan.cli.render.text import clean
    from mulligan.errors import NotRunning

    # An exception in another thread would not reach the one that waits.
    if holder is None or not holder.is_stopped or current_thread() is not main_thread():
        _report_wait(holder)
        return
    raise NotRunning(
        f"The supervisor cannot answer: process {holder.pid} ({clean(holder.command)[:200]}) is "
        "stopped inside a write and holds the write lock.",
        hint=f"`kill -CONT {holder.pid}` continues it; `kill -9 {holder.pid}` is safe: nothing "
        "acknowledged is lost.",
    )


def _report_wait(holder: LockOwner | None) -> None:
    """Name the process that the command waits for and, if it is stopped, how to end the wait."""
    from mulligan.cli.render.text import clean

    said = "Waiting for another process, which is writing to the store."
    if holder is not None:
        who = f"Waiting for process {holder.pid} ({clean(holder.command)[:200]}), which is"
        said = f"{who} {holder.doing}."
        if holder.is_stopped:
            said = f"{who} stopped while {holder.doing}.\n`kill -CONT {holder.pid}` continues it; "
            said += f"`kill -9 {holder.pid}` is safe: nothing acknowledged is lost."
    with suppress(OSError):  # a closed terminal must not end the command
        click.echo(said, err=True)


def _end_frozen(place: Path) -> None:
    from mulligan.supervisor.stopped import end_stopped

    for one in end_stopped(str(place)):
        said = f"Ended the stopped process {one.pid} of {one.agent} in {one.session};"
        click.echo(f"{said} its supervisor is dead.", err=True)


def _path(store: str) -> Path:
    return Path(store).absolute()


def _unknown(store: Store, name: str, hint: str, *, may_create: bool) -> Exception:
    from mulligan.default_session import listing
    from mulligan.errors import UnknownSession

    names = [session.name for session in store.sessions()]
    known = f"; there are:{listing(names)}" if names else ", nor any other."
    if may_create:
        hint = "Check the name, or pass --create to make it."
    return UnknownSession(f"There is no session {name!r}{known}", hint=hint)
