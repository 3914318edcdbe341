"""Tool calls: recorded before they start and after they returned, in the state's ``tools``.

A call that has no return although its process is gone is in doubt: it may have happened.
"""

from __future__ import annotations

import fnmatch
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, get_args

import msgspec

from mulligan.decoding import ready
from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE, event_change
from mulligan.document.values import freeze
from mulligan.errors import Conflict, EffectInDoubt, InvalidEffect, UnknownEffect, UnstorableValue
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint, Holder, ToolCall
from mulligan.session import arguments
from mulligan.session.components import TOOLS
from mulligan.session.occurrences import Scope
from mulligan.session.parts.effects import Effects, check_name, said
from mulligan.session.write import leases
from mulligan.session.write.writer import Work, Writer

if TYPE_CHECKING:
    from mulligan.session.runtime.command import Stopper

Function = TypeVar("Function", bound=Callable[..., Any])

Checkpoints = Literal["none", "before", "both"]
"""Which checkpoints are taken around a call."""

CALLED, RETURNED, FAILED, IN_DOUBT = "called", "returned", "failed", "in_doubt"

SHELL = "shell"
"""The tool that runs commands."""

OLD_CALLS = "calls"
"""Where programs kept calls before this component had its own API."""

NOT_HAPPENED = "did not happen"
"""The error of a call that a person settled as failed."""

MAX_ID = 200
"""The longest id that a program may give a call, in characters."""

_FIELDS = frozenset(ToolCall.__struct_fields__) - {"id", "status"}


class ActiveCall:
    """A call in a ``with`` block: recorded as called inside, and with its result after it.

    ``returned`` takes the result; without it, the result is None. An exception makes the call
    failed; a crash, or being cancelled, leaves it in doubt.
    """

    def __init__(
        self, tools: Tools, name: str, args: Any, id: str | None, checkpoints: Checkpoints
    ) -> None:
        self._tools = tools
        self._result: Any = None
        self._has_failed: str | None = None
        self.token = tools._new_token()
        self.id = id or ""
        self.name = name
        self.args = args
        self.checkpoints = checkpoints
        self.files: list[str] | None = None
        """The paths that it changed, if the caller knows them."""

    def __enter__(self) -> Self:
        self.id = self._tools._begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._has_failed is None:
            fields = {"status": RETURNED, "result": self._result}
        elif error is None or (
            isinstance(error, Exception) and not isinstance(error, EffectInDoubt)
        ):
            told = self._has_failed if error is None else said(error)
            fields = {"status": FAILED, "error": told, "result": self._result}
        else:
            # Cancelled or interrupted: what it did meanwhile is not known.
            fields = {"status": IN_DOUBT, "error": said(error)}
        self._tools._end(self, fields)

    def returned(self, result: Any) -> None:
        """Take the result; values that cannot be stored are kept as text."""
        self._result = _storable(result)

    def failed(self, error: str, result: Any = None) -> None:
        """Note that the call failed without an exception."""
        self._has_failed = arguments.text(error, "An error", InvalidEffect)
        self._result = _storable(result)

    def started(self, pid: int) -> None:
        """Note a process that the call started, so that a later look can tell if it still runs."""
        self._tools._started(self.id, leases.identity(pid))


class Tools:
    """The calls of tools in a session."""

    def __init__(
        self,
        writer: Writer,
        scope: Scope,
        checkpoint: Callable[[str], Checkpoint],
        effects: Callable[[], Effects],
        changed: Callable[[int], list[str] | None],
    ) -> None:
        """Connect to a session.

        ``checkpoint`` takes one; ``changed`` returns the paths that changed since a seq.
        """
        self._writer = writer
        self._scope = scope
        self._checkpoint = checkpoint
        self._effects = effects
        self._changed = changed
        self._active: set[str] = set()
        self._numbers = count(1)
        self._policies: list[tuple[str, Checkpoints]] = []

    def __iter__(self) -> Iterator[ToolCall]:
        """Yield all calls, oldest first."""
        return iter(self.list())

    def list(
        self, *, name: str | None = None, failed: bool = False, in_doubt: bool = False
    ) -> Sequence[ToolCall]:
        """Return the calls, oldest first: of a name or pattern, failed ones, or those in doubt."""
        wanted = {FAILED} if failed else set()
        wanted |= {IN_DOUBT} if in_doubt else set()
        # Calls that returned are most of them, and their results may be large: these are not
        # loaded where they are not asked for.
        statuses = wanted | {CALLED} if wanted else None
        records = _records(self._writer.document(), statuses)
        found = [self._call(id, record) for id, record in records.items()]
        return [
            call
            for call in sorted(found, key=lambda call: (call.seq or 0, call.id))
            if (not wanted or call.status in wanted)
            and (name is None or fnmatch.fnmatchcase(call.name, name))
        ]

    def get(self, id: str) -> ToolCall:
        """Return a call by its id; raises ``UnknownEffect``."""
        record = _record(self._writer.document(), id)
        if record is None:
            raise UnknownEffect(f"There is no tool call {id!r}.")
        return self._call(id, record)

    def call(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> ActiveCall:
        """Record a call of a tool around a ``with`` block; see ``ActiveCall``.

        ``id`` is the call's own, if it has one. ``checkpoints`` says which are taken around it; by
        default as :meth:`take_checkpoints` says.
        """
        check_name(name, "tool")
        if id is not None and not 0 < len(arguments.text(id, "An id", InvalidEffect)) <= MAX_ID:
            raise InvalidEffect(f"The id of a call has 1 to {MAX_ID} characters, not {len(id)}.")
        chosen = self._policy(name) if checkpoints is None else _checked(checkpoints)
        return ActiveCall(self, name, _storable(args), id, chosen)

    def take_checkpoints(self, name: str, checkpoints: Checkpoints) -> None:
        """Say which checkpoints are taken around calls whose name matches a pattern."""
        check_name(name, "tool")
        self._policies.append((name, _checked(checkpoints)))

    def tool(
        self,
        function: Function | None = None,
        *,
        name: str | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Any:
        """Record every call of a function; a decorator, with or without options."""

        def decorated(wrapped: Function) -> Function:
            called = check_name(name or wrapped.__name__, "tool")

            @wraps(wrapped)
            def tool(*args: Any, **kwargs: Any) -> Any:
                with self.call(called, _bound(wrapped, args, kwargs), checkpoints=checkpoints) as c:
                    result = wrapped(*args, **kwargs)
                    c.returned(result)
                return result

            @wraps(wrapped)
            async def async_tool(*args: Any, **kwargs: Any) -> Any:
                with self.call(called, _bound(wrapped, args, kwargs), checkpoints=checkpoints) as c:
                    result = await wrapped(*args, **kwargs)
                    c.returned(result)
                return result

            is_async = inspect.iscoroutinefunction(wrapped)
            return cast(Function, async_tool if is_async else tool)

        return decorated if function is None else decorated(function)

    def begin(self, name: str, args: Any = None, *, id: str | None = None) -> str:
        """Record that a call starts, for adapters that learn of its end elsewhere; return its id.

        :meth:`record` ends it. Until then it is under way as long as the process runs that this
        handle writes for (``process=`` of ``Store.agent``), and in doubt afterwards.
        """
        active = self.call(name, args, id=id, checkpoints="none")
        # Another handle ends it: this one must not count it as its own.
        active.token = f"{self._writer.process}#-"
        return self._begin(active)

    def record(
        self,
        name: str,
        args: Any = None,
        *,
        result: Any = None,
        error: str | None = None,
        id: str | None = None,
    ) -> ToolCall:
        """Record a call that has ended already, for adapters that learn of calls afterwards.

        One that is recorded as called, or is in doubt, ends with this.
        """
        active = self.call(name, args, id=id, checkpoints="none")
        arguments.optional_text(error, "An error", InvalidEffect)
        status = RETURNED if error is None else FAILED
        fields = {"status": status, "result": _storable(result), "error": error}

        def decide(work: Work) -> str:
            known = id or f"c{work.seq + 1}"
            record = _record(work.document, known)
            if record is None:
                record = self._new(work, active)
            elif record["status"] not in (CALLED, IN_DOUBT):
                raise _ended(known, record)
            _write(work, _KINDS[status], known, {**record, **fields, "acting": None})
            return known

        made = self._writer.commit(decide)
        self._writer.engine.failpoint(Failpoint.TOOL_RETURNED)
        return self.get(made)

    def settle(
        self,
        id: str,
        outcome: Literal["done", "failed"],
        *,
        result: Any = None,
        note: str | None = None,
        by: str | None = None,
    ) -> ToolCall:
        """Say whether a call in doubt happened; raises ``Conflict`` for any other.

        ``id`` is its id or the beginning of one. As ``Effects.settle`` does.
        """
        arguments.outcome("A call", outcome, result, note)
        status, error = (RETURNED, None) if outcome == "done" else (FAILED, note or NOT_HAPPENED)
        fields = {"status": status, "result": result, "error": error, "acting": None}
        fields |= {"by": by or self._writer.actor, "note": note}

        def decide(work: Work) -> str:
            known, record = _known(work.document, id)
            call = self._call(known, record)
            if call.status != IN_DOUBT:
                is_now = "under way" if call.status == CALLED else call.status
                raise Conflict(
                    f"The tool call {known} ({call.name}) is {is_now}, not in doubt.",
                    hint="Nothing was written.",
                )
            # Programs of earlier versions named it in another way.
            _write(work, _KINDS[status], known, {**record, "name": call.name, **fields})
            return known

        made = self._writer.commit(decide)
        self._writer.engine.failpoint(Failpoint.TOOL_RETURNED)
        return self.get(made)

    def run(
        self,
        command: Sequence[str],
        *,
        effect: str | None = None,
        key: str | None = None,
        show: Callable[[int, bytes], None] | None = None,
        directory: Path | None = None,
    ) -> ToolCall:
        """Run a command with a checkpoint before and after it, and record what it did.

        The result has its exit code and output; ``files`` are the paths that it changed. With
        ``effect`` it is that effect, found by ``key`` or by the command: if it was done before, it
        does not run, and the call that it had is returned.
        """
        return self._run_stoppable(command, None, effect, key, show, directory)

    def _run_stoppable(
        self,
        command: Sequence[str],
        stopper: Stopper | None,
        effect: str | None = None,
        key: str | None = None,
        show: Callable[[int, bytes], None] | None = None,
        directory: Path | None = None,
    ) -> ToolCall:
        """Do as ``run`` does; the stopper ends the command from another thread."""
        words = arguments.items(command, "A command is a list of texts", InvalidEffect, "")
        if not words or not all(isinstance(word, str) for word in words):
            raise InvalidEffect(f"A command is a list of texts, not {command!r}.")
        if effect is None:
            return self._run(words, show, directory, stopper)
        try:
            with self._effects().make(effect, {"command": words}, key=key) as act:
                if act.settled:
                    return msgspec.convert(act.result, ready(ToolCall))
                call = self._run(words, show, directory, stopper)
                act.result = msgspec.to_builtins(call)
                if call.status == FAILED:
                    # What a signal ended may have happened or not; an exit code says that it
                    # failed. Either way, the ledger has it, and the caller gets the call.
                    raise (_CommandKilled if _was_killed(call) else _CommandFailed)(call.error)
        except (_CommandFailed, _CommandKilled):
            pass
        return call

    def _run(
        self,
        words: Sequence[str],
        show: Callable[[int, bytes], None] | None,
        directory: Path | None,
        stopper: Stopper | None,
    ) -> ToolCall:
        from mulligan.session.runtime.command import run  # slow to import

        with self.call(SHELL, {"command": [*words]}, checkpoints="both") as call:
            ended = run(words, call.started, show or _unseen, directory, stopper)
            result = msgspec.to_builtins(ended)
            if ended.exit:
                call.failed(f"exit code {ended.exit}", result)
            else:
                call.returned(result)
        return self.get(call.id)

    def _begin(self, active: ActiveCall) -> str:
        # Inside a batch, the call would not be durable before it starts.
        self._writer.check_alone("A tool call")
        before = None
        if active.checkpoints != "none":
            before = self._checkpoint(f"before {active.name}").id

        def decide(work: Work) -> str:
            known = active.id or f"c{work.seq + 1}"
            if (record := _record(work.document, known)) is not None:
                raise _ended(known, record)
            record = {**self._new(work, active), "acting": active.token, "before": before}
            _write(work, "tool.called", known, record)
            return known

        # Before the commit: another thread that sees the record then must not take it for one
        # whose call has ended.
        self._active.add(active.token)
        try:
            id = self._writer.commit(decide)
        except BaseException:
            self._active.discard(active.token)
            raise
        self._writer.engine.failpoint(Failpoint.TOOL_CALLED)
        return id

    def _end(self, active: ActiveCall, fields: dict[str, Any]) -> None:
        try:
            if active.checkpoints == "both":
                fields["after"] = self._checkpoint(f"after {active.name}").id
                record = _record(self._writer.document(), active.id) or {}
                fields["files"] = self._changed(int(record.get("seq", 0)))
            if active.files is not None:
                fields["files"] = active.files
            self._update(_KINDS[fields["status"]], active.id, fields)
        finally:
            self._active.discard(active.token)
        self._writer.engine.failpoint(Failpoint.TOOL_RETURNED)

    def _started(self, id: str, process: str) -> None:
        self._update("tool.started", id, {"process": process})

    def _update(self, kind: str, id: str, fields: Mapping[str, Any]) -> None:
        def decide(work: Work) -> None:
            record = _record(work.document, id)
            # A restore may have gone back behind the call meanwhile: then it is recorded again.
            _write(work, kind, id, {**(record or {"name": "unknown"}), **fields})

        self._writer.commit(decide)

    def _new(self, work: Work, active: ActiveCall) -> dict[str, Any]:
        return {
            "name": active.name,
            "args": active.args,
            "status": CALLED,
            "agent": self._writer.actor,
            "task": self._scope.task,
            "at": self._writer.engine.clock.now(),
            "seq": work.seq + 1,
        }

    @property
    def _handle(self) -> str:
        """This process and this handle of it, which knows its own calls that are under way."""
        # The own process after the mark: handles of two hooks of one agent differ.
        return f"{self._writer.process}#{os.getpid():x}-{id(self):x}."

    def _new_token(self) -> str:
        return f"{self._handle}{next(self._numbers)}"

    def _call(self, id: str, record: Mapping[str, Any]) -> ToolCall:
        status = str(record["status"])
        acting = record.get("acting")
        if status == CALLED and self._is_gone(acting):
            status = IN_DOUBT
        known = {key: record[key] for key in _FIELDS & record.keys()}
        known |= {"acting": None if acting is None else str(acting).split("#")[0]}
        try:
            return msgspec.convert({**known, "id": id, "status": status}, ready(ToolCall))
        except msgspec.ValidationError:
            # A program of an earlier version may have written anything there.
            name = record.get("name", record.get("tool"))
            return ToolCall(id, name if isinstance(name, str) else "", "in_doubt")

    def _is_gone(self, acting: Any) -> bool:
        if acting is None:
            return True  # a program wrote it down itself: nothing says that it still runs
        if str(acting).startswith(self._handle):
            return str(acting) not in self._active
        return leases.is_dead(Holder.parse(str(acting).split("#")[0]))

    def _policy(self, name: str) -> Checkpoints:
        matching = (kind for pattern, kind in self._policies if fnmatch.fnmatchcase(name, pattern))
        return next(matching, "none")


_KINDS = {RETURNED: "tool.returned", FAILED: "tool.failed", IN_DOUBT: "tool.in_doubt"}


class _CommandFailed(Exception):
    """A command that was an effect failed; only the ledger sees it."""


class _CommandKilled(BaseException):
    """A command that was an effect was ended by a signal; only the ledger sees it."""


def is_running(call: ToolCall) -> bool:
    """Whether a process that a call started still runs."""
    if call.process is None:
        return False
    holder = Holder.parse(call.process)
    return leases.process_of(holder) is not None and not leases.is_dead(holder)


def _was_killed(call: ToolCall) -> bool:
    return isinstance(call.result, dict) and int(call.result.get("exit", 0)) < 0


def _checked(checkpoints: Any) -> Checkpoints:
    if checkpoints not in get_args(Checkpoints):
        known = ", ".join(get_args(Checkpoints))
        raise InvalidEffect(f"checkpoints= is one of {known}, not {checkpoints!r}.")
    return cast(Checkpoints, checkpoints)


def _record(document: Document, id: str) -> dict[str, Any] | None:
    """Return the record of a call, as plain values."""
    for path in ((*STATE, TOOLS, id), (*STATE, TOOLS, OLD_CALLS, id)):
        found = document.find(path)
        record = None if found is MISSING else document.plain(found)
        if isinstance(record, dict) and isinstance(record.get("status"), str):
            return record
    return None


def _known(document: Document, id: str) -> tuple[str, dict[str, Any]]:
    """Return the id and the record that an id, or the beginning of one, names."""
    arguments.text(id, "The id of a call", InvalidEffect)
    ids = [known for _, known, _ in _paths(document)]
    found = [id] if id in ids else [known for known in ids if id and known.startswith(id)]
    if len(found) != 1:
        which = f"{len(found)} tool calls have" if found else "No tool call has"
        raise UnknownEffect(f"{which} an id that begins with {id!r}.")
    return found[0], _record(document, found[0]) or {}


def _records(document: Document, statuses: Collection[str] | None) -> dict[str, dict[str, Any]]:
    """Return the records of calls by their ids: all, or those that have one of the statuses."""
    return {
        id: document.plain(document.find(path))
        for path, id, status in _paths(document)
        if statuses is None or status in statuses
    }


def _paths(document: Document) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield where each record of a call is, its id and its status; its values are not loaded."""
    known = set()
    for path in ((*STATE, TOOLS), (*STATE, TOOLS, OLD_CALLS)):
        above = document.find(path)
        node = None if above is MISSING else document.resolved(above)
        for id in document.entries(node) if nodes.is_map(node) else ():
            status = document.find((*path, id, "status"))
            # What was written of an old call since, such as its end, is in the first place.
            if isinstance(status, str) and id not in known:
                known.add(id)
                yield (*path, id), id, status


def _write(work: Work, kind: str, id: str, record: Mapping[str, Any]) -> None:
    change = [[[TOOLS, id], freeze(dict(record))]]
    tool, status = record.get("name"), record.get("status")
    work.add(event_change(kind, change, call=id, tool=tool, status=status))


def _ended(id: str, record: Mapping[str, Any]) -> Conflict:
    return Conflict(
        f"The tool call {id} is {record.get('status')} already.",
        hint="Nothing was written. Each call has an id of its own.",
    )


def _storable(value: Any) -> Any:
    """Return a value as it can be stored: what cannot, such as an object, as text."""
    try:
        freeze(value)
    except UnstorableValue:
        return repr(value)
    return value


def _bound(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    try:
        found = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        found = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
    return {name: _storable(value) for name, value in found.items()}


def _unseen(number: int, data: bytes) -> None:
    """Show nothing."""
