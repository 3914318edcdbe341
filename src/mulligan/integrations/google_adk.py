"""Google's Agent Development Kit: a session service on Mulligan timelines, and durable tools.

::

    service = MulliganSessionService(".")
    runner = Runner(app=app, session_service=service)  # app: ResumabilityConfig(is_resumable=True)
    given = await service.resume_input(APP, USER, SESSION, new_message)
    async for event in runner.run_async(user_id=USER, session_id=SESSION, **given): ...

One Mulligan session per session of ADK: ``conversation`` has the events, ``session_state`` the
state of the session's own scope, ``adk`` whose session it is. The state of an app and of its users
is in a Mulligan session of the app.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from mulligan.integrations.missing_extra import framework

with framework("google-adk", "google.adk"):
    from google.adk.errors import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.plugins import BasePlugin
    from google.adk.sessions import BaseSessionService
    from google.adk.sessions import Session as AdkSession
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from google.adk.sessions.state import State
    from pydantic_core import to_jsonable_python

from mulligan.document.document import MISSING
from mulligan.errors import Conflict
from mulligan.integrations.handles import (
    CallThread,
    Handles,
    StoreLike,
    name_of,
    prefix_of,
    retried,
    text_of,
)
from mulligan.integrations.json_values import all_from_stored, from_stored, to_stored
from mulligan.integrations.recorded_calls import RecordedCalls
from mulligan.model import ToolCall
from mulligan.session import Session
from mulligan.session.parts.tools import ActiveCall

KIND = "adk"
SCOPE_KIND = "adk-scope"
RECORD = "adk"
EVENTS = "conversation"
OWN_STATE = "session_state"
APP_SCOPE = "app_state"
USER_SCOPE = "user_state"

RECENT_EVENTS = 64
"""Among this many last events an event that is sent again is recognised."""


class MulliganSessionService(BaseSessionService):
    """A session service of ADK.

    An event with its state is one transaction. A session that another process has written to is
    refused with ``StaleSessionError``, as ADK's own persistent services do.
    """

    def __init__(self, store: StoreLike) -> None:
        """Use an open store, or open that of a directory."""
        super().__init__()
        self._handles = Handles(store)
        self._thread = CallThread("mulligan-adk")

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """Make a session; raises ``AlreadyExistsError`` if there is one with that id."""
        id = (session_id or "").strip() or str(uuid.uuid4())
        return await self._thread.run(retried, partial(self._create, app_name, user_id, id, state))

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> AdkSession | None:
        """Return a session with its merged state and all, or the requested, events."""
        id = session_id.strip() if session_id else session_id
        return await self._thread.run(self._get, app_name, user_id, id, config)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the sessions of a user or of an app without events, the newest last."""
        found = await self._thread.run(self._list, app_name, user_id)
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session; the state of the app and of the user stays."""
        id = session_id.strip() if session_id else session_id
        await self._thread.run(self._delete, app_name, user_id, id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix of its keys."""
        return await self._thread.run(self._scope(app_name).user, user_id)

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Append an event and its state, once; partial events are not stored."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        revision = await self._thread.run(retried, partial(self._append, session, event))
        if revision is None:
            return event
        session.last_update_time = event.timestamp
        session._storage_update_marker = revision
        return self._commit_event_to_session(session, event)

    async def resume_input(
        self, app_name: str, user_id: str, session_id: str, new_message: Any
    ) -> dict[str, Any]:
        """Return what to pass to ``Runner.run_async`` so that an interrupted program goes on.

        It is the ``invocation_id`` of the last invocation, if that got this message and did not
        end; the ``new_message`` itself otherwise. The app has to be resumable.
        """
        session = await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        invocation = None if session is None else _unfinished(session.events, new_message)
        return {"new_message": new_message} if invocation is None else {"invocation_id": invocation}

    def session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the Mulligan session of a session of ADK, for checkpoints and forks."""
        return self._handles.find(_name(app_name, user_id, session_id))

    async def close(self) -> None:
        """Close the store, if it was opened here."""
        await self._thread.run(self._handles.close)

    def _create(
        self, app_name: str, user_id: str, id: str, state: dict[str, Any] | None
    ) -> AdkSession:
        session = self._handles.session(_name(app_name, user_id, id))
        app, user, own = _scopes(state or {})
        record = {
            "app_name": app_name,
            "user_id": user_id,
            "id": id,
            "updated": time.time(),
            "revision": uuid.uuid4().hex,
            "pending": _pending(app, user),
        }
        with session.batch():
            if session.state.get(RECORD, MISSING) is not MISSING:
                raise AlreadyExistsError(f"Session with id {id} already exists.")
            session.state.set(OWN_STATE, own)
            # Compared, so that of two processes only one makes it.
            session.state.set(RECORD, record, expected=MISSING)
        self._settle(session, record, is_late=False)
        return self._shown(session, record, [])

    def _get(
        self, app_name: str, user_id: str, id: str, config: GetSessionConfig | None
    ) -> AdkSession | None:
        found = self._found(app_name, user_id, id)
        if found is None:
            return None
        return self._shown(*found, _events(found[0], config))

    def _list(self, app_name: str, user_id: str | None) -> list[AdkSession]:
        parts = [app_name] if user_id is None else [app_name, user_id]
        found = [
            (session, session.state.get(RECORD))
            for session in self._handles.starting_with(prefix_of(KIND, *parts))
        ]
        shown = [self._shown(session, record, []) for session, record in found if record]
        return sorted(shown, key=lambda s: (s.last_update_time, s.user_id, s.id))

    def _delete(self, app_name: str, user_id: str, id: str) -> None:
        if (found := self._found(app_name, user_id, id)) is not None:
            self._handles.delete(found[0].name)

    def _append(self, adk: AdkSession, event: Event) -> str | None:
        """Store an event and return the revision after it; None if it is stored already."""
        found = self._found(adk.app_name, adk.user_id, adk.id)
        if found is None:
            raise SessionNotFoundError(f"Session {adk.id} not found.")
        session, before = found
        stored = to_stored(event.model_dump(mode="json", exclude_none=True))
        app, user, own = _scopes(event.actions.state_delta if event.actions else {})
        with session.batch():
            if stored in session.state.tail(EVENTS, RECENT_EVENTS):
                return None
            if _is_stale(session, before, adk):
                raise StaleSessionError(
                    "The session was modified in storage since it was read: read it again."
                )
            for key, value in own.items():
                session.state.put((OWN_STATE, key), value)
            session.state.append(EVENTS, stored)
            after = {
                **before,
                "updated": event.timestamp,
                "revision": uuid.uuid4().hex,
                "pending": _pending(app, user),
            }
            # Compared, so that two processes cannot both take their session for the newest.
            session.state.set(RECORD, after, expected=before)
        self._settle(session, after, is_late=False)
        return str(after["revision"])

    def _found(self, app_name: str, user_id: str, id: str) -> tuple[Session, dict[str, Any]] | None:
        """Return a session and its record, after what a dead process left to do."""
        session = self._handles.find(_name(app_name, user_id, id))
        record = None if session is None else session.state.get(RECORD)
        if session is None or record is None:
            return None
        return session, self._settle(session, record, is_late=True)

    def _settle(self, session: Session, record: dict[str, Any], *, is_late: bool) -> dict[str, Any]:
        """Write the state of app and user that an event brought; return the record after it.

        They are in another Mulligan session, so this is another transaction: it is noted in the
        one of the event, and done late, by the next process that looks, if this one dies before.
        """
        pending = record["pending"]
        if not pending:
            return record
        scope = self._scope(record["app_name"])
        retried(partial(scope.apply, record["user_id"], pending, is_late=is_late))
        settled = {**record, "pending": None}
        try:
            session.state.set(RECORD, settled, expected=record)
        except Conflict:
            # Another process settled it at the same moment, and may have appended since. Applying
            # the same values twice changes nothing.
            return self._settle(session, session.state.get(RECORD) or settled, is_late=True)
        return settled

    def _scope(self, app_name: str) -> _Scope:
        return _Scope(self._handles.session(name_of(SCOPE_KIND, app_name)))

    def _shown(self, session: Session, record: dict[str, Any], events: list[Any]) -> AdkSession:
        scope = self._scope(record["app_name"])
        own = session.state.get(OWN_STATE) or {}
        merged = {key: from_stored(value) for key, value in own.items()}
        merged |= {State.APP_PREFIX + key: value for key, value in scope.app().items()}
        user = scope.user(record["user_id"])
        merged |= {State.USER_PREFIX + key: value for key, value in user.items()}
        shown = AdkSession(
            id=record["id"],
            app_name=record["app_name"],
            user_id=record["user_id"],
            state=merged,
            events=[Event.model_validate(event) for event in events],
            last_update_time=record["updated"],
        )
        shown._storage_update_marker = record.get("revision")
        return shown


class _Scope:
    """The state of an app and of its users: each value with the time at which it was set."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._state = session.state

    def app(self) -> dict[str, Any]:
        return self._values((APP_SCOPE,))

    def user(self, user_id: str) -> dict[str, Any]:
        return self._values((USER_SCOPE, user_id))

    def apply(self, user_id: str, pending: dict[str, Any], *, is_late: bool) -> None:
        """Set values; what is done late does not replace what others set since."""
        changes: list[tuple[tuple[str, ...], Any]]
        changes = [((APP_SCOPE, key), value) for key, value in pending["app"].items()]
        changes += [((USER_SCOPE, user_id, key), value) for key, value in pending["user"].items()]
        with self._session.batch():
            for path, value in changes:
                before = self._state.get(path, MISSING)
                if before is MISSING or not is_late or before["at"] <= pending["at"]:
                    entry = {"at": pending["at"], "value": value}
                    self._state.set(path, entry, expected=before)

    def _values(self, path: tuple[str, ...]) -> dict[str, Any]:
        found = self._state.get(path) or {}
        return {key: from_stored(entry["value"]) for key, entry in found.items()}


class MulliganPlugin(BasePlugin):
    """Records the calls of tools, so that an invocation which is resumed repeats none.

    Pass it to the ``App``. A tool whose process died in the middle is called again, unless its
    name matches a pattern of ``at_most_once``: then ``EffectInDoubt`` is raised.
    """

    def __init__(self, service: MulliganSessionService, at_most_once: Sequence[str] = ()) -> None:
        """Record in the sessions of a service."""
        super().__init__(name="mulligan")
        self._service = service
        self._at_most_once = at_most_once
        # By the context, which ADK makes for one call: ids of models may be those of other calls,
        # also in other sessions. It is kept here, so that no other one gets its number.
        self._active: dict[int, tuple[Any, ActiveCall]] = {}

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> dict[str, Any] | None:
        """Return the result of a call that returned before; otherwise record that it is made."""
        calls, call_id = self._calls(tool_context), _call_id(tool_context)
        known = await calls.begin(call_id, tool.name, _as_json(tool_args))
        if isinstance(known, ToolCall):
            return _as_dict(from_stored(known.result))
        self._active[id(tool_context)] = tool_context, known
        return None

    async def after_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any
    ) -> dict[str, Any] | None:
        """Record the result of a call."""
        active = self._taken(tool_context)
        if active is not None:
            stored = _as_json(result)
            if _waits_for_user(tool_context):
                # ADK calls the tool when the user has answered: this is no result of it.
                active.failed("waits for an answer of the user")
            await self._calls(tool_context).end(active, stored)
        return None

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: Exception
    ) -> dict[str, Any] | None:
        """Record that a call failed."""
        active = self._taken(tool_context)
        if active is not None:
            await self._calls(tool_context).end(active, error=error)
        return None

    def _taken(self, tool_context: Any) -> ActiveCall | None:
        """Return the call that is made with a context, and forget it."""
        found = self._active.pop(id(tool_context), None)
        return None if found is None else found[1]

    def _calls(self, tool_context: Any) -> RecordedCalls:
        adk = tool_context.session
        session = self._service.session(adk.app_name, adk.user_id, adk.id)
        if session is None:
            raise SessionNotFoundError(f"Session {adk.id} not found.")
        access = f"service.session({adk.app_name!r}, {adk.user_id!r}, {adk.id!r})"
        return RecordedCalls(session, self._service._thread, access, self._at_most_once)


def _name(app_name: str, user_id: str, id: str) -> str:
    texts = (text_of(app_name, "An app name"), text_of(user_id, "A user id"), id)
    return name_of(KIND, *texts)


def _as_json(value: Any) -> Any:
    try:
        return to_jsonable_python(value, fallback=repr)
    except UnicodeDecodeError:  # bytes that are no text
        return to_jsonable_python(value, fallback=repr, bytes_mode="base64")


def _scopes(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what a state has of the app, of the user and of the session, ready to be stored."""
    app: dict[str, Any] = {}
    user: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in state.items():
        stored = to_stored(_as_json(copy.copy(value)))
        if key.startswith(State.APP_PREFIX):
            app[key.removeprefix(State.APP_PREFIX)] = stored
        elif key.startswith(State.USER_PREFIX):
            user[key.removeprefix(State.USER_PREFIX)] = stored
        elif not key.startswith(State.TEMP_PREFIX):
            own[key] = stored
    return app, user, own


def _pending(app: dict[str, Any], user: dict[str, Any]) -> dict[str, Any] | None:
    return {"app": app, "user": user, "at": time.time()} if app or user else None


def _events(session: Session, config: GetSessionConfig | None) -> list[Any]:
    most = None if config is None else config.num_recent_events
    state = session.state
    stored = state.get(EVENTS, []) if most is None else state.tail(EVENTS, most)
    events = all_from_stored(stored)
    since = None if config is None else config.after_timestamp
    if since is None:
        return events
    # As ADK's own service: from the first event on after which none is older.
    start = max((n for n, event in enumerate(events, 1) if event["timestamp"] < since), default=0)
    return events[start:]


def _is_stale(session: Session, record: dict[str, Any], adk: AdkSession) -> bool:
    """Whether a session was written to since an object of it was read.

    Times do not tell: those of events are set by their callers, whose clocks may differ. An object
    that a program made itself has no revision; it is judged by its time and its last event.
    """
    revision = adk._storage_update_marker
    if revision is not None:
        return bool(revision != record.get("revision"))
    if record["updated"] <= adk.last_update_time:
        return False
    last = all_from_stored(session.state.tail(EVENTS, 1))
    return [event["id"] for event in last] != [event.id for event in adk.events[-1:]]


def _unfinished(events: list[Event], message: Any) -> str | None:
    """Return the invocation that got a message as its last one, and did not end."""
    if not events:
        return None
    invocation = events[-1].invocation_id
    asked = [e for e in events if e.invocation_id == invocation and e.author == "user"]
    if not asked or asked[0].content is None or asked[0].content.parts != message.parts:
        return None
    ended = [e for e in events if e.invocation_id == invocation and e.author != "user"]
    is_over = bool(ended) and (ended[-1].actions.end_of_agent or ended[-1].is_final_response())
    return None if is_over else str(invocation)


def _call_id(tool_context: Any) -> str:
    """Return an id that no other call of the session has, and that is the same after a crash.

    Some models give the id of a call again, in another invocation or even in the next answer.
    """
    id, invocation = str(tool_context.function_call_id), str(tool_context.invocation_id)
    answered = sum(
        response.id == id
        for event in tool_context.session.events
        if event.invocation_id == invocation
        for response in event.get_function_responses()
    )
    return f"{invocation}.{id}.{answered}"


def _waits_for_user(tool_context: Any) -> bool:
    """Whether a call asked the user to confirm it, or to sign in, instead of returning."""
    id, actions = tool_context.function_call_id, tool_context.actions
    return id in actions.requested_tool_confirmations or id in actions.requested_auth_configs


def _as_dict(result: Any) -> dict[str, Any]:
    return result if isinstance(result, dict) else {"result": result}
