"""Handling hooks: from the JSON that an agent gives to the reply that it gets.

A hook never disturbs its agent. Whatever goes wrong is a line in the log (``hook_log``), and the
next hook records what this one missed. The reply is then empty; only at the start of a session and
at a prompt of Claude Code is it a message, which the program shows to the person, not to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from mulligan.clock import SystemClock
from mulligan.coding import claude, hook_input, hook_log
from mulligan.coding.agent_json import whole_characters
from mulligan.coding.hook_input import HookEvent, HookKind
from mulligan.errors import (
    LeaseHeld,
    MulliganError,
    StoreGone,
    StoreNotFound,
    UnsafeWorkspace,
)
from mulligan.failpoints import FailpointHook, ignore
from mulligan.locate.registry import state_directory

if TYPE_CHECKING:
    from mulligan.locate.find import Found
    from mulligan.session import Session
    from mulligan.store import Store

MAX_MESSAGE = 300
"""How long a message to a person is at most, in characters."""


class HookRunner:
    """Handles the hooks of coding agents, and keeps their stores and sessions open meanwhile.

    A fresh process handles one and closes it. One that stays, such as the MCP server, keeps it, and
    its watcher knows what changed without a scan. ``handle`` may be called from one thread at a
    time.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        stays: bool = False,
        create: bool = False,
        failpoint: FailpointHook = ignore,
    ) -> None:
        """Use the variables of the environment.

        ``stays`` says that the process lives on, ``create`` that a project without a store gets
        one.
        """
        self._variables = variables
        self._create = create
        self._failpoint = failpoint
        self._stays = stays
        self._has_ended_turn = False
        self._stores: dict[Path, Store] = {}
        self._sessions: dict[tuple[Path, str, int | None], Session] = {}

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
    def log(self) -> Path:
        """The directory of the log of hooks."""
        return state_directory(self._variables)

    def handle(self, data: bytes, agent: str = hook_input.CLAUDE, id: str | None = None) -> bytes:
        """Record what hook JSON tells, and return the reply for the agent; empty for none.

        An event that comes again with the same ``id`` is recorded once. Raises nothing: what went
        wrong is noted in the log, and told to the person where they look.
        """
        event: HookEvent | None = None
        try:
            event = hook_input.parse(data, agent)
            event = msgspec.structs.replace(event, id=id)
            return self._handle(event)
        except Exception as error:
            # Of any kind: a defect here must not disturb the agent either, and is noted.
            is_expected = self._is_expected(event, error)
            if not is_expected:
                self.note(_about(agent, event), said(error))
            self._forget_gone(error)
            return b"" if event is None or is_expected else _message(event, said(error))

    def _is_expected(self, event: HookEvent | None, error: Exception) -> bool:
        """Whether a directory gets no store, such as the home directory: the start says so."""
        is_start = event is None or event.kind is HookKind.SESSION_START
        return self._create and isinstance(error, UnsafeWorkspace) and not is_start

    def note(self, about: str, said: str) -> bool:
        """Write a line into the log; return whether that was possible."""
        return hook_log.note(self.log, SystemClock().now(), about, said)

    def overdue(self) -> list[Path]:
        """Return the stores that no process has looked after for some time, after a turn."""
        if not self._has_ended_turn:
            return []  # the agent waits for hooks in the middle of its work
        from mulligan.store import engine_of
        from mulligan.upkeep.record import is_overdue

        return [path for path, store in self._stores.items() if is_overdue(engine_of(store))]

    def close(self) -> None:
        """Close what is open. Idempotent."""
        closing = [session.close for session in self._sessions.values()]
        closing += [store.close for store in self._stores.values()]
        self._sessions.clear()
        self._stores.clear()
        for close in closing:
            self._close(close)

    def _close(self, close: Callable[[], None]) -> None:
        try:
            close()
        except (MulliganError, OSError) as error:
            self.note("close", said(error))  # everything acknowledged is durable already

    def _handle(self, event: HookEvent) -> bytes:
        from mulligan.coding.recorder import record  # not needed for what is ignored

        store, root = self._store(event)
        session = self._session(store, root, event)
        is_unheard = event.kind is HookKind.SESSION_END and _heard_no_prompt(session, event)
        if is_unheard and not hook_log.mentions(self.log, event.session_id):
            # Hooks that came and failed have said why.
            self.note(_about(event.agent, event), NO_PROMPT_HEARD)
        if event.kind in _AFTER_TOOLS:
            from mulligan.coding.settings.put_back import put_back

            # Before the checkpoint: a restore of it brings the hooks back, too.
            put_back(session, root, event.agent, self._variables)
        if event.kind in _AFTER_TOOLS or event.kind is HookKind.PROMPT:
            from mulligan.coding.settings.put_back import keep_ignored

            # Before the checkpoint, too: its lines for git come back with the repository.
            keep_ignored(root, event.agent, self._variables)
        taken = record(session, event)
        self._has_ended_turn = event.kind is HookKind.TURN_END
        reply = _reply(session, event)
        if taken is not None and taken.coverage is not None and taken.coverage.refused is not None:
            reply = _message(event, f"{taken.coverage.refused}.")
        if event.kind is HookKind.SESSION_END:
            self._end(session)
        return reply

    def _store(self, event: HookEvent) -> tuple[Store, Path]:
        """Return the store of the agent's project, and the directory whose files it has."""
        from mulligan.locate.find import agree, copied
        from mulligan.opener import open_store

        found = self._found(Path(self._variables.get(claude.PROJECT) or event.cwd))
        if found.pointer and not agree(found.store, found.pointer):
            raise copied(found.pointer, found.store)
        if found.store not in self._stores:
            self._stores[found.store] = open_store(
                found.store, self._variables, False, (), None, self._failpoint, upkeep=self._stays
            )
        return self._stores[found.store], found.directory

    def _found(self, place: Path) -> Found:
        """Return the store of the directory, whatever store the agent itself was started with."""
        from mulligan.locate.find import nearest, new_worktree

        state = state_directory(self._variables)
        try:
            return nearest(place, state)
        except StoreNotFound:
            top = new_worktree(place, state) or (place if self._create else None)
        if top is not None:
            from mulligan.make_store import make_store  # once per project

            make_store(top, self._variables)
        # In any case: a hook that runs beside this one may have made the store meanwhile.
        return nearest(place, state)

    def _session(self, store: Store, root: Path, event: HookEvent) -> Session:
        process = claude.agent_process(self._variables)
        key = (Path(str(store.path)), event.session_id, process)
        if key not in self._sessions:
            # A process that handles one event spares what opening a directory imports.
            needs_files = self._stays or event.kind not in _WITHOUT_FILES
            self._sessions[key] = _open(store, root if needs_files else None, event, process)
            if self._stays:
                self._sessions[key].internal.watch()
        return self._sessions[key]

    def _end(self, session: Session) -> None:
        """Release the lease of an agent that has ended in order."""
        session.internal.release_hold()
        for key in [key for key, known in self._sessions.items() if known is session]:
            del self._sessions[key]
        self._close(session.close)

    def _forget_gone(self, error: BaseException) -> None:
        """Close everything after an error that a handle may not survive."""
        if isinstance(error, (StoreGone, OSError)):
            self.close()


def _about(agent: str, event: HookEvent | None) -> str:
    if event is None:
        return agent
    return f"{agent} {event.name} {event.session_id} in {event.cwd}"


def session_of(agent: str, id: str) -> str:
    """Return the name of the session that records an agent's session, by the agent's id of it."""
    from mulligan.session.names import session_name

    return session_name(f"{agent}-{id}")


def _open(store: Store, files: Path | None, event: HookEvent, process: int | None) -> Session:
    """Open the session of an agent, held for its process if that is known."""
    name = session_of(event.agent, event.session_id)
    if process is None:
        return store.session(name, actor=event.agent, workspace=files)
    try:
        return store.agent(event.agent, session=name, process=process, workspace=files)
    except LeaseHeld:
        # The same session is open in two agents at once. Both are recorded, each as its own actor.
        other = f"{event.agent}-{process}"
        return store.agent(other, session=name, process=process, workspace=files)


NO_PROMPT_HEARD = (
    "The session had prompts, but no hook of one came: hooks call the MCP server, and it did not "
    "run. This checkpoint is the only one of the session."
)


def _heard_no_prompt(session: Session, event: HookEvent) -> bool:
    """Whether hooks were there at the start of a session, and none of them told of its prompts."""
    from mulligan.coding.agent_session import agent_session
    from mulligan.coding.transcripts import transcript
    from mulligan.coding.transcripts.claude_transcript import is_main, prompt_text

    known = agent_session(session) if event.agent == hook_input.CLAUDE else None
    if known is None or known.prompts or event.transcript is None:
        return False
    said = transcript.read_new(event.transcript).entries
    return any(prompt_text(one) is not None for one in said if is_main(one))


_WITHOUT_FILES = {
    HookKind.TOOL_CALLED,
    HookKind.TOOL_RETURNED,
    HookKind.TOOL_FAILED,
    HookKind.SUBAGENT_START,
    HookKind.SESSION_START,
}
"""The events that take no checkpoint."""


_AFTER_TOOLS = {HookKind.BATCH_END, HookKind.SUBAGENT_END, HookKind.TURN_END}
"""The events before which the agent may have deleted its own hooks."""


def _reply(session: Session, event: HookEvent) -> bytes:
    """Return what the agent is told: a call that needs approval, by the store's rules."""
    if event.kind is not HookKind.TOOL_CALLED or event.tool is None:
        return b""
    from mulligan.coding.recorder import deny
    from mulligan.coding.tool_policy import approval

    decision, rule = approval(session.internal.engine.effect_rules, event.tool)
    if decision == "auto":
        return b""
    said = f"A rule of Mulligan's store for {rule!r} says so (approval = {decision!r})."
    if decision == "ask" and event.agent != hook_input.CLAUDE:
        # Their hooks cannot ask: Codex goes on with the call, Gemini CLI hangs without a terminal.
        decision = "deny"
        said = f"{said} {event.agent} cannot ask from a hook: a person has to do it, or allow it."
    if decision == "deny":
        deny(session, event.tool, said)
    if event.agent == hook_input.GEMINI:
        return msgspec.json.encode({"decision": decision, "reason": said})
    reply = {
        "hookEventName": event.name,
        "permissionDecision": decision,
        "permissionDecisionReason": said,
    }
    return msgspec.json.encode({"hookSpecificOutput": reply})


_MISSED = {
    HookKind.SESSION_START: "Mulligan cannot record this session",
    HookKind.PROMPT: "Mulligan has no checkpoint of the files before this prompt",
}
"""What a person is told at events that fail: those at which they look."""


def _message(event: HookEvent, why: str) -> bytes:
    """Return what tells a person that an event was not recorded; empty for most events."""
    missed = _MISSED.get(event.kind)
    if event.agent != hook_input.CLAUDE or missed is None:
        return b""
    text = " ".join(f"{missed}: {why}".split())[:MAX_MESSAGE]
    told = whole_characters(f"{text} `mulligan doctor` says more.")
    return msgspec.json.encode({"systemMessage": told})


def said(error: BaseException) -> str:
    """Return what an error says, with its class unless it is one of Mulligan's."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, MulliganError) else f"{type(error).__name__}: {text}"


def run_hook(data: bytes, variables: Mapping[str, str], agent: str = hook_input.CLAUDE) -> bytes:
    """Handle one hook in a fresh process and return the reply; see ``HookRunner.handle``."""
    with HookRunner(variables) as runner:
        return runner.handle(data, agent)
