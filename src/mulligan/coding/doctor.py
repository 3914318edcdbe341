"""Checks that the hooks of a coding agent are installed and work: one sentence for each."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.clock import SystemClock
from mulligan.coding import claude, hook_log
from mulligan.coding.hook_input import EVENTS, HookKind
from mulligan.coding.hooks import said, session_of
from mulligan.coding.rewind.target import PROMPT_KIND
from mulligan.coding.settings.claude_settings import DISABLED
from mulligan.coding.settings.install import (
    AGENTS,
    CREATE,
    mcp_server,
    read_settings,
    settings_module,
)
from mulligan.errors import DiskFull, MulliganError, ReadOnlyStore, StoreNotFound, UnknownSession
from mulligan.locate.find import Found, agree, copied, nearest, new_worktree
from mulligan.locate.registry import state_directory

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.store import Store

SLOW_SECONDS = 2.0
"""From here on, a hook is slow: the agent waits for it after every batch of tool calls."""

INSTALL = f"`mulligan install {'|'.join(AGENTS)}`"

LIMIT_SECONDS = 60.0
LEFT_AFTER = timedelta(seconds=2 * LIMIT_SECONDS)
"""From this age on, a session of a check that no process holds was left by one that was killed."""

OWN_ID = re.compile("doctor-[0-9a-f]{8}")
"""The ids of the sessions in which hooks are run."""

CLIENT = {"name": "mulligan doctor", "version": "1"}
LEAST_FREE = 64 << 10
"""How many bytes are free at least on a disk that is not full: a hook needs some for its log."""

RECENT = timedelta(days=1)
MAX_NOTES = 500

ABOUT = re.compile(r"\S+ \S+ \S+ \S+ in (/.*?): ")
"""How a note of a hook begins: time, agent, event, session and directory."""

OpenStore = Callable[[Path], "Store"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked: whether it is well, in one sentence, and what helps if not."""

    name: str
    ok: bool
    said: str
    hint: str | None = None


def examine(
    agent: str | None, place: Path, variables: Mapping[str, str], open_store: OpenStore
) -> Iterator[Check]:
    """Check the hooks of an agent in a directory, and its store; yields what was found.

    None is any agent, where none has hooks.

    A hook is really run, as the agent would run it, in a session of its own, which is deleted
    afterwards.
    """
    state, found, problem = state_directory(variables), None, None
    try:
        found = nearest(place, state)
    except (MulliganError, OSError) as error:
        problem = error
    project = found.directory if found else place
    installed = None if agent is None else _Installed(agent, project, variables)
    if problem is not None:
        makes_one = installed is not None and installed.make_store(place, state)
        yield _no_store(problem, makes_one=makes_one)
    if installed is None:
        said_of = "No hooks of a coding agent are installed here."
        yield Check("hooks", False, said_of, f"{INSTALL} installs them.")
    else:
        yield from installed.checks()
    if found is not None and (owner := _other_owner(found.store)):
        yield owner
    elif found is not None:
        store = _store(found, open_store)
        yield store
        if store.ok and installed is not None:
            yield from _run(installed, found, variables, open_store)
    yield _log(state, project)


def _run(
    installed: _Installed, found: Found, variables: Mapping[str, str], open_store: OpenStore
) -> Iterator[Check]:
    """Run a hook as the agent does, and through the MCP server where hooks call that."""
    if not installed.command:
        return
    _remove_left(found.store, open_store)
    yield from _fire(installed.agent, found, installed.command, variables, open_store)
    if installed.calls_server and installed.server:
        call = _ServerCall(installed.agent, found, installed.server, variables)
        yield from call.checks(installed.command, open_store)


def installed_agents(place: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the agents that have hooks of Mulligan in the project of a directory, or in all."""
    try:
        project = nearest(place, state_directory(variables)).directory
    except (MulliganError, OSError):
        project = place
    return [agent for agent in AGENTS if _Installed(agent, project, variables).is_any]


def _no_store(problem: Exception, *, makes_one: bool) -> Check:
    if isinstance(problem, PermissionError) and isinstance(problem.filename, str):
        return _refused(Path(problem.filename))
    hint = getattr(problem, "hint", None)
    if not isinstance(problem, StoreNotFound) or hint != StoreNotFound.default_hint:
        return Check("store", False, said(problem), hint)  # there should be one
    if makes_one:
        said_of = "There is no store here yet; the agent's first session makes it."
        return Check("store", True, said_of)
    return Check("store", False, said(problem), f"{INSTALL} makes one.")


class _Installed:
    """The hooks of an agent in all settings files that it reads."""

    def __init__(self, agent: str, project: Path, variables: Mapping[str, str]) -> None:
        self.agent = agent
        module = settings_module(agent)
        self.server = mcp_server(agent, project, variables)
        self._events: dict[str, list[str]] = {}
        self.calls_server = False
        """Whether hooks call the MCP server, beside a command."""
        self._problems: list[Check] = []
        for path in module.files(project, variables):
            try:
                settings = read_settings(agent, path).settings
                self._events = module.installed(settings) | self._events
                call_server = getattr(module, "call_server", None)
                self.calls_server |= call_server is not None and call_server(settings)
                if settings.get(DISABLED) is True:
                    self._add(f"{path} has {DISABLED}: no hook runs.", "Remove that setting.")
                untrusted = getattr(module, "untrusted", None)
                if untrusted is not None and untrusted(path, settings, variables):
                    said_of = f"{agent} does not run the hooks in {path}: they are not trusted yet."
                    self._add(said_of, module.ADVICE)
            except MulliganError as error:
                self._add(said(error), "Fix the file: the agent cannot use it either.")

    def _add(self, said: str, hint: str) -> None:
        self._problems.append(Check("hooks", False, said, hint))

    @property
    def is_any(self) -> bool:
        """Whether there are hooks of Mulligan, or may be, in a file that cannot be read."""
        return bool(self._events or self._problems)

    @property
    def command(self) -> Sequence[str] | None:
        """The command that hooks run; None if there is none that can be run."""
        found = (words for words in self._events.values() if words)
        return next((words for words in found if os.access(words[0], os.X_OK)), None)

    def make_store(self, place: Path, state: Path) -> bool:
        """Whether they make a store for a directory without one.

        Those of a user do, and those of a project in its other worktrees.
        """
        if any(CREATE in words for words in self._events.values()):
            return True
        return self.is_any and new_worktree(place, state) is not None

    def checks(self) -> Iterator[Check]:
        """Yield what is wrong with the hooks, or that they are installed."""
        yield from self._problems
        again = f"`mulligan install {self.agent}` installs them."
        missing = [event for event in EVENTS[self.agent] if event not in self._events]
        if not self._events and self._problems:
            return  # they may be in the file that cannot be read
        if not self._events:
            yield Check("hooks", False, f"No hooks of {self.agent} are installed here.", again)
        elif missing:
            said = f"Hooks are missing for {', '.join(missing)}."
            yield Check("hooks", False, said, again)
        elif self.command is None:
            name = next((words[0] for words in self._events.values() if words), "no command")
            yield Check("hooks", False, f"Hooks run {name}, which cannot be run.", again)
        elif not all(self._events.values()):
            said = "Hooks of an earlier version only call the MCP server: without it, they record"
            yield Check("hooks", False, f"{said} nothing.", f"`mulligan install {self.agent}`.")
        elif self.calls_server and self.server is None:
            said = (
                "Hooks call Mulligan's MCP server, which is not installed, or turned off, here: "
                "they do their work without it, slower."
            )
            hint = (
                f"`mulligan install {self.agent}` installs hooks that need none; `claude mcp add "
                "mulligan -- mulligan mcp` adds it."
            )
            yield Check("hooks", False, said, hint)
        elif not self._problems:
            way = ", through the MCP server" if self.calls_server else ""
            yield Check("hooks", True, f"The hooks of {self.agent} are installed{way}.")


def _other_owner(store: Path) -> Check | None:
    """Return what is wrong with a store, or a directory above, of another user; None if nothing."""
    uid = store.stat().st_uid
    if uid == os.getuid():
        return None
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    said = f"{store} belongs to the user {name}: hooks record nothing."
    return Check("store", False, said, "`mulligan init` in a directory of yours makes a store.")


def _refused(path: Path) -> Check:
    """Return why a file of a store cannot be read: whose it is, or the directory that it is in."""
    for place in (path, *path.parents):
        try:
            owner = _other_owner(place)
        except OSError:
            continue  # what it is in cannot be searched either
        if owner is not None:
            return owner
        break
    hint = f"`ls -ld {path.parent}` shows who may."
    return Check("store", False, f"{path} may not be read by this user.", hint)


def _store(found: Found, open_store: OpenStore) -> Check:
    try:
        if found.pointer and not agree(found.store, found.pointer):
            raise copied(found.pointer, found.store)
        with open_store(found.store) as store:
            report = store.verify(full=False)
    except (MulliganError, OSError) as error:
        return Check("store", False, said(error), getattr(error, "hint", None))
    if not report.ok:
        problem = f"The store {found.store} is damaged: {report.problems[0]}"
        return Check("store", False, problem, "`mulligan verify --repair` says more.")
    if not os.access(found.store, os.W_OK):
        said_of = f"The store {found.store} cannot be written: hooks record nothing."
        return Check("store", False, said_of, ReadOnlyStore.default_hint)
    if shutil.disk_usage(found.store).free < LEAST_FREE:
        said_of = f"The disk of the store {found.store} is full: hooks record nothing."
        return Check("store", False, said_of, DiskFull.default_hint)
    return Check("store", True, f"The store {found.store} is sound.")


def _fire(
    agent: str,
    found: Found,
    command: Sequence[str],
    variables: Mapping[str, str],
    open_store: OpenStore,
) -> Iterator[Check]:
    """Run a hook as the agent does, and look whether it was recorded."""
    id = f"doctor-{os.urandom(4).hex()}"
    hook = _Hook(agent, found, command, variables)
    began, started = SystemClock().now(), time.monotonic()
    try:
        done = hook.run(HookKind.PROMPT, id)
        took = time.monotonic() - started
        # The hooks of some agents hold the session for the process that runs them: this one.
        hook.run(HookKind.SESSION_END, id)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("run", False, f"A hook could not be run: {error}.", "Look at its command.")
        return
    taken = _recorded(found.store, session_of(agent, id), open_store)
    if taken is None:
        yield _no_record(agent, done, _note_since(began, variables))
        return
    if taken.coverage is not None and taken.coverage.refused is not None:
        said = f"A hook recorded a checkpoint without files: {taken.coverage.refused}."
        hint = "Free some space, or raise the quota; `mulligan prune` removes checkpoints."
        yield Check("run", False, said, hint)
        return
    yield Check("run", True, "A hook was run and recorded a checkpoint.")
    yield _speed(took)


def _no_record(agent: str, done: subprocess.CompletedProcess[bytes], note: str) -> Check:
    """Return why a hook recorded nothing; one that is silent did not reach Mulligan."""
    ran = f"A hook ran, with exit code {done.returncode}, and recorded nothing"
    if why := done.stderr.decode(errors="replace").strip() or note:
        return Check("run", False, f"{ran}: {why}", "The line above says what failed.")
    hint = (
        f"`mulligan install {agent}` makes hooks start this Mulligan; theirs may have been moved, "
        "or removed."
    )
    return Check("run", False, f"{ran}; it gave no reason.", hint)


def _note_since(began: datetime, variables: Mapping[str, str]) -> str:
    """Return what a hook noted last, if that is not older than the check."""
    notes = hook_log.last_notes(state_directory(variables), 1)
    return "".join(one for one in notes if _is_since(one, began.replace(microsecond=0)))


class _Hook(msgspec.Struct, frozen=True):
    """The command of an agent's hooks, as the agent runs it in a project."""

    agent: str
    found: Found
    command: Sequence[str]
    variables: Mapping[str, str]

    def run(
        self, kind: HookKind, id: str, process: int | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it for an event of a session; ``process`` is that of the agent, if it has one."""
        place = self.found.directory
        own = {**self.variables, claude.PROJECT: str(place)}
        own.pop(claude.PROCESS, None)
        if process is not None:
            own[claude.PROCESS] = str(process)
        event, limit = _event(self.agent, kind, id, place), LIMIT_SECONDS
        return subprocess.run(
            self.command, input=event, env=own, cwd=place, capture_output=True, timeout=limit
        )


class _ServerCall(msgspec.Struct, frozen=True):
    """A hook through the MCP server, which is started for it as the agent does."""

    agent: str
    found: Found
    server: Mapping[str, Any]
    variables: Mapping[str, str]

    def checks(self, command: Sequence[str], open_store: OpenStore) -> Iterator[Check]:
        """Yield whether a hook that calls the server is recorded."""
        words = [self.server.get("command"), *(self.server.get("args") or ())]
        if not all(isinstance(word, str) for word in words):
            return  # one that runs elsewhere
        id = f"doctor-{os.urandom(4).hex()}"
        hint = (
            "Hooks do their work without it, slower. Look at its command; `claude mcp list` says "
            "whether it starts."
        )
        began = SystemClock().now()
        try:
            done = self._run([str(word) for word in words], id)
            # The session is held for the process that started the server: this one.
            hook = _Hook(self.agent, self.found, command, self.variables)
            hook.run(HookKind.SESSION_END, id, os.getpid())
        except (OSError, subprocess.TimeoutExpired) as error:
            yield Check("server", False, f"The MCP server could not be run: {error}.", hint)
            return
        if _recorded(self.found.store, session_of(self.agent, id), open_store) is None:
            note = _note_since(began, self.variables)
            why = done.stderr.decode(errors="replace").strip() or note
            said = f"The MCP server ran, and a hook that called it recorded nothing: {why}"
            yield Check("server", False, said, hint)
            return
        yield Check("server", True, "The MCP server was started, and a hook recorded through it.")

    def _run(self, words: Sequence[str], id: str) -> subprocess.CompletedProcess[bytes]:
        place, given = self.found.directory, self.server.get("env")
        own = {str(name): str(value) for name, value in given.items()} if given else {}
        return subprocess.run(
            words,
            input=_requests(msgspec.json.decode(_event(self.agent, HookKind.PROMPT, id, place))),
            env={**self.variables, **own},
            cwd=place,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )


def _requests(event: dict[str, str]) -> bytes:
    """Return what an agent says to its MCP server: the handshake, and the call of a hook."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello = {"id": 1, "method": "initialize", "params": {**about, "clientInfo": CLIENT}}
    call = {"id": 2, "method": "tools/call", "params": {"name": "hook", "arguments": event}}
    said = (hello, {"method": "notifications/initialized"}, call)
    return b"".join(msgspec.json.encode({"jsonrpc": "2.0", **one}) + b"\n" for one in said)


def _event(agent: str, kind: HookKind, id: str, cwd: Path) -> bytes:
    """Return an event as the agent sends it."""
    name = next(name for name, known in EVENTS[agent].items() if known is kind)
    about = {"session_id": id, "cwd": str(cwd), "hook_event_name": name}
    return msgspec.json.encode({**about, "prompt": "mulligan doctor"})


def _recorded(path: Path, name: str, open_store: OpenStore) -> Checkpoint | None:
    """Return the checkpoint that a hook recorded; its session is deleted."""
    with open_store(path) as store:
        try:
            taken = store.session(name, create=False).checkpoints(kind=PROMPT_KIND, limit=1)
        except UnknownSession:
            return None
        with suppress(MulliganError):  # one that cannot be deleted now is only in the way
            store.delete(name)
        return taken[0] if taken else None


def _remove_left(path: Path, open_store: OpenStore) -> None:
    """Delete the sessions of earlier checks that were killed before they could do so."""
    with suppress(MulliganError), open_store(path) as store:
        for session in store.sessions():
            agent, _, id = session.name.partition("-")
            if not OWN_ID.fullmatch(id) or session.internal.is_held(agent):
                continue
            # A check that runs beside this one may not have its lease yet.
            if session.internal.clock.now() - session.updated > LEFT_AFTER:
                store.delete(session.name)


def _speed(took: float) -> Check:
    said = f"A hook takes {took * 1000:.0f} ms here."
    if took < SLOW_SECONDS:
        return Check("time", True, said)
    hint = "Name large directories that need no checkpoint in .mulliganignore."
    return Check("time", False, said, hint)


def _log(state: Path, project: Path) -> Check:
    since = SystemClock().now() - RECENT
    recent = [line for line in hook_log.last_notes(state, MAX_NOTES) if _is_since(line, since)]
    here = [line for line in recent if not _is_elsewhere(line, project)]
    if not here:
        said = "No hook has failed in the last 24 hours."
        if recent:  # other projects are not what is asked about; a person can look
            said = f"No hook has failed here in the last 24 hours, but {len(recent)} elsewhere."
        return Check("log", True, said)
    count = "A hook" if len(here) == 1 else f"{len(here)} hooks"
    said = f"{count} failed in the last 24 hours, the last one: {here[-1]}"
    return Check("log", False, said, f"All of them are in {state / hook_log.NAME}.")


def _is_elsewhere(line: str, project: Path) -> bool:
    """Whether a note is about an agent in another directory than a project, or below it."""
    found = ABOUT.match(line)
    return found is not None and not Path(found[1]).is_relative_to(project)


def _is_since(line: str, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(line.split(" ", 1)[0]) >= since
    except ValueError:
        return False
