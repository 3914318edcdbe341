"""Durable steps: a step that was completed returns its recorded result instead of running again.

A step is known by its name and its occurrence in the task, or else in the agent, that it belongs
to. Its result is one transaction after the call. Options of a step are those of
``Session.durable``.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

import msgspec

from mulligan import codec
from mulligan.document.document import MISSING, settle
from mulligan.document.fold import STATE, Change, event_change
from mulligan.document.values import freeze
from mulligan.errors import EffectError, InvalidEffect, StepChanged, UnstorableValue
from mulligan.failpoints import Failpoint
from mulligan.model import EffectKind
from mulligan.session.components import STEPS
from mulligan.session.occurrences import Scope
from mulligan.session.parts.effects import ActiveEffect, Effects, check_name, said
from mulligan.session.write.ledger import LOCAL
from mulligan.session.write.writer import Writer

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

Changed = Literal["stop", "reuse", "rerun"]
"""What is done about a step whose arguments are not those that it was recorded with."""

MAX_DELAY_SECONDS = 60.0
"""The longest pause between two attempts of a step."""

ARGUMENT_CHARACTERS = 16


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is run; see ``Session.durable``."""

    retries: int = 0
    delay: float = 1.0
    backoff: float = 2.0
    errors: tuple[type[Exception], ...] = (Exception,)
    changed: Changed = "stop"
    at_most_once: bool = False
    effect: str | None = None
    effect_options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        retries: Any = self.retries
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidEffect(f"retries= is a whole number of 0 or more, not {retries!r}.")
        for name, least in (("delay", 0.0), ("backoff", 1.0)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < least:
                raise InvalidEffect(f"{name}= is a number of {least:g} or more, not {value!r}.")
        if self.changed not in get_args(Changed):
            known = ", ".join(get_args(Changed))
            raise InvalidEffect(f"changed= is one of {known}, not {self.changed!r}.")
        errors: Any = self.errors
        kinds = errors if isinstance(errors, tuple) else (errors,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise InvalidEffect(f"errors= is a tuple of exceptions, not {errors!r}.")


PLAIN = StepOptions()


class _StepCall:
    """One call of a step: which record it has, and what was given to it."""

    def __init__(
        self, name: str, scope: str, number: int, arguments: dict[str, str], options: StepOptions
    ) -> None:
        self.name = name
        self.scope = scope
        self.number = number
        self.arguments = arguments
        self.options = options
        self.failures = 0
        self.is_running = False
        """Whether its function runs: only what that raises is a failure of the step."""

    @property
    def key(self) -> str:
        """The key of its record."""
        return f"{self.scope}/{self.name}#{self.number}"


class _Recorded(msgspec.Struct, frozen=True):
    """A result that was recorded."""

    result: Any


class Runner(Protocol):
    """Makes the calls of a step that is awaited, which read and write the store."""

    async def call(self, call: Callable[[], T], keep: Callable[[T], None] | None = None) -> T:
        """Make a call and return its result; ``keep`` gets one whose caller was cancelled."""
        ...

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        returned: Callable[[Any], None],
    ) -> None:
        """Run the function of the step and hand its result over, also after a cancellation."""
        ...

    def context(self, manager: Any, *, is_act: bool) -> AbstractAsyncContextManager[Any]:
        """Enter and leave a context manager; one of an act failed if its block does not start."""
        ...


class _Inline:
    """Makes the calls where they are: a step of a session without a worker thread."""

    async def call(self, call: Callable[[], T], keep: Callable[[T], None] | None = None) -> T:
        return call()

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        returned: Callable[[Any], None],
    ) -> None:
        returned(await function(*args, **kwargs))

    @asynccontextmanager
    async def context(self, manager: Any, *, is_act: bool) -> AsyncIterator[Any]:
        with manager as entered:
            yield entered


class Steps:
    """Runs the steps of one handle."""

    def __init__(self, writer: Writer, scope: Scope, effects: Callable[[], Effects]) -> None:
        self._writer = writer
        self._scope = scope
        self._effects = effects
        self._clock = writer.engine.clock
        self._failpoint = writer.engine.failpoint

    def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: StepOptions = PLAIN,
    ) -> Any:
        """Return the recorded result, or run the function and record what it returns.

        For a coroutine function it returns a coroutine that does so.
        """
        check_name(name, "step")
        if not callable(function):
            raise InvalidEffect(f"The step {name!r} needs a function, not {function!r}.")
        if inspect.iscoroutinefunction(function):
            return self.run_async(_Inline(), name, function, args, kwargs, options)
        return self._run(name, function, args, kwargs, options)

    def decorated(self, function: Function, name: str | None, options: StepOptions) -> Function:
        """Return a function each of whose calls is a step."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidEffect(
                f"{function.__name__!r} is a generator: a call returns before its body runs.",
                hint="Nothing was written. Make a step of what it yields.",
            )
        called = check_name(name or function.__name__, "step")

        @wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            return self.run(called, function, args, kwargs, options)

        return cast(Function, step)

    def _run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        call = self._call(name, args, kwargs, options)
        try:
            # Looked up before every attempt: another process may have recorded the step meanwhile.
            while (found := self._recorded(call)) is None:
                try:
                    with self._attempt(call, args, kwargs, function) as attempt:
                        if attempt.must_run:
                            attempt.returned(function(*args, **kwargs))
                except Exception as error:
                    self._clock.sleep(self._pause(call, error))
                else:
                    return attempt.result
        except BaseException:
            # The next call of the name is this occurrence again: a step that failed was not taken.
            self._put_back(call)
            raise
        return found.result

    async def run_async(
        self,
        runner: Runner,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: StepOptions = PLAIN,
    ) -> Any:
        """Do as ``run`` does where the function is awaited; the runner makes all other calls."""
        # Put back if it was taken for a caller that was cancelled: the next call has its number.
        taken = partial(self._call, name, args, kwargs, options)
        call = await runner.call(taken, self._put_back)
        try:
            while (found := await runner.call(lambda: self._recorded(call))) is None:
                try:
                    made = self._attempt(call, args, kwargs, function)
                    async with runner.context(made, is_act=True) as attempt:
                        # Nothing is awaited between its return and the end of the block, which
                        # records it: a cancellation in between would lose what was done.
                        if attempt.must_run:
                            await runner.run(function, args, kwargs, attempt.returned)
                except Exception as error:
                    await asyncio.sleep(await runner.call(partial(self._pause, call, error)))
                else:
                    return attempt.result
        except BaseException:
            self._put_back(call)
            raise
        return found.result

    def _call(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], options: StepOptions
    ) -> _StepCall:
        # Chosen inside a batch, the result would count although the batch may still fail.
        self._writer.check_alone("A step")
        scope = self._scope.name
        # Counted in the order of the calls, which a program that starts again repeats.
        number = self._scope.occurrences.take(scope, f"step {name}")
        return _StepCall(name, scope, number, _digests(args, kwargs), options)

    def _put_back(self, call: _StepCall) -> None:
        self._scope.occurrences.put_back(call.scope, f"step {call.name}", call.number)

    def _recorded(self, call: _StepCall) -> _Recorded | None:
        """Return the recorded result; None if the step has to run."""
        document = self._writer.document()
        found = document.find((*STATE, STEPS, call.key))
        if found is MISSING:
            return None
        record = document.plain(found)
        if "result" not in record:
            return None
        differing = _differing(record.get("args", {}), call.arguments)
        if differing and call.options.changed == "rerun":
            return None
        if differing and call.options.changed == "stop":
            raise StepChanged(
                f"The step {call.name!r} (occurrence {call.number}) was recorded with other "
                f"arguments: {', '.join(differing)}."
            )
        return _Recorded(record["result"])

    def _effect(
        self,
        call: _StepCall,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        function: Callable[..., Any],
    ) -> Any:
        options = call.options
        if options.effect is None and not options.at_most_once:
            return _NoEffect()
        given = dict(options.effect_options)
        if options.effect is None:
            given["kind"] = cast(EffectKind, LOCAL)
        intent = given.pop("intent", None)
        if intent is None:
            intent = _intent(function, args, kwargs)
        elif callable(intent):
            intent = intent(*args, **kwargs)
        if callable(key := given.get("key")):
            given["key"] = key(*args, **kwargs)
        return self._effects().make(options.effect or call.name, intent, **given)

    def _ran(self, call: _StepCall, effect: Any, result: Any) -> None:
        """Record the result: alone, or together with the outcome of its effect."""
        call.is_running = False
        self._failpoint(Failpoint.STEP_RAN)
        change = _completed(call, result)
        if isinstance(effect, ActiveEffect):
            if not effect.settled:
                effect.result = result
                # In the transaction of the outcome: the records of step and effect never disagree.
                effect.also.append(change)
            return
        self._commit(change)

    def _attempt(
        self,
        call: _StepCall,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        function: Callable[..., Any],
    ) -> _Attempt:
        return _Attempt(self, call, self._effect(call, args, kwargs, function))

    def _record_settled(self, call: _StepCall, effect: Any) -> None:
        """Record a step whose effect was settled elsewhere, for example by a person."""
        if isinstance(effect, ActiveEffect) and effect.settled:
            self._commit(_completed(call, effect.result))

    def _commit(self, change: Change) -> None:
        self._writer.commit(lambda work: work.add(change))
        self._failpoint(Failpoint.STEP_RECORDED)

    def _pause(self, call: _StepCall, error: Exception) -> float:
        """Note a failed attempt and return the seconds until the next one; raises the last one."""
        # An effect inside that waits for approval, or is in doubt, has not failed.
        if not call.is_running or isinstance(error, EffectError):
            raise error
        call.is_running = False
        call.failures += 1
        options = call.options
        record = {"args": call.arguments, "error": said(error), "attempts": call.failures}
        # Before the pause: the timeline shows the failure even if the process dies while it waits.
        self._commit(_step_change("step.failed", call, record, error=said(error)))
        if not isinstance(error, options.errors) or call.failures > options.retries:
            raise error
        pause = options.delay * options.backoff ** (call.failures - 1)
        return float(min(pause, MAX_DELAY_SECONDS))


class _Attempt:
    """One attempt of a step in a ``with`` block, whose end records what the function returned."""

    def __init__(self, steps: Steps, call: _StepCall, act: Any) -> None:
        self._steps, self._call, self._act = steps, call, act
        self._effect: Any = None
        self._has_returned = False
        self.result: Any = None

    @property
    def must_run(self) -> bool:
        """Whether the function has to run: its effect was not settled before."""
        return not self._effect.settled

    def returned(self, result: Any) -> None:
        """Take what the function returned."""
        self.result, self._has_returned = result, True

    def __enter__(self) -> _Attempt:
        self._effect = self._act.__enter__()
        self._call.is_running = self.must_run
        self.result = self._effect.result
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_returned:
            # Also where a cancellation came after it: what was done is recorded.
            kind = error = trace = None
            try:
                self._steps._ran(self._call, self._effect, self.result)
            except BaseException as failure:
                self._act.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._act.__exit__(kind, error, trace)
        if error is None:
            self._steps._record_settled(self._call, self._effect)


class _NoEffect:
    """A step that is no effect."""

    settled = False
    result = None

    def __enter__(self) -> _NoEffect:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def _completed(call: _StepCall, result: Any) -> Change:
    record: dict[str, Any] = {"result": result}
    if call.arguments:
        record["args"] = call.arguments
    return _step_change("step.completed", call, record)


def _step_change(kind: str, call: _StepCall, record: dict[str, Any], **facts: Any) -> Change:
    try:
        frozen = freeze(record)
    except UnstorableValue as error:
        raise UnstorableValue(
            f"The result of the step {call.name!r} cannot be stored: {error}",
            hint="The step ran, and is not recorded. Return plain values: dicts, lists, texts, "
            "numbers, bytes.",
        ) from error
    changes = [[[STEPS, call.key], frozen]]
    return event_change(kind, changes, step=call.name, occurrence=call.number, **facts)


def _digests(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, str]:
    """Return the digests of the arguments that can be stored, by their position or name.

    Digests, not values: a step that is given the whole conversation must not store it again.
    """
    named = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
    found = {}
    for name, value in named.items():
        try:
            data = settle(freeze(value), codec.value_digest)
        except UnstorableValue:
            continue  # an object of the program: there is nothing to compare
        found[name] = codec.value_digest(data).hex()[:ARGUMENT_CHARACTERS]
    return found


def _differing(recorded: dict[str, str], given: dict[str, str]) -> list[str]:
    names = [*recorded, *(name for name in given if name not in recorded)]
    return [
        f"argument {name}" if name.isdecimal() else name
        for name in names
        if recorded.get(name) != given.get(name)
    ]


def _intent(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{str(number): value for number, value in enumerate(args)}, **kwargs}
