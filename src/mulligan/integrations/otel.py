"""OpenTelemetry: spans and metrics of what Mulligan does in this process.

::

    from mulligan.integrations.otel import instrument

    instrument(store)  # spans and metrics go to the providers that the program has configured

Until it is called, nothing is imported, wrapped or measured.

=======================  =========================================================================
span                     of
=======================  =========================================================================
``mulligan.checkpoint``  a checkpoint, with its id, kind, milliseconds and bytes
``mulligan.restore``     a restore, an undo or a redo, with the point and the number of files
``mulligan.step NAME``   a durable step, and whether its result was recorded before
``execute_tool NAME``    a call of a tool, with the attributes of OpenTelemetry for generative AI
``mulligan.recovery``    a recovery of an interrupted session
``mulligan.start NAME``  a start of an agent's process by its supervisor, the first or a restart
=======================  =========================================================================

Every span has the session as ``gen_ai.conversation.id`` and the agent as ``gen_ai.agent.name``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from mulligan.integrations.missing_extra import framework

with framework("otel", "opentelemetry.trace"):
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Span, Status, StatusCode

import mulligan.recovery.resume
import mulligan.supervisor.run
from mulligan.errors import MulliganError
from mulligan.session.checkpoint_taker import CheckpointTaker
from mulligan.session.parts.steps import Steps
from mulligan.session.parts.tools import ActiveCall
from mulligan.session.write.restorer import Restorer
from mulligan.store import Store
from mulligan.supervisor.machine import how_ended
from mulligan.supervisor.team import Team
from mulligan.views.metrics import PREFIX, Metric, store_metrics

SCOPE = "mulligan"

_UNITS = {"bytes": "By", "seconds": "s", "": "1"}
"""Units as OpenTelemetry writes them."""

_SPANS = "_mulligan_span"
"""The attribute of a call of a tool that holds its span."""


class Instrumentation:
    """What :func:`instrument` has wrapped; :meth:`uninstrument` ends it."""

    def __init__(self, tracer: Any, meter: Any) -> None:
        self._tracer = tracer
        self._meter = meter
        self._observed: list[_ObservedStore] = []
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._duration = meter.create_histogram(
            f"{PREFIX}.checkpoint.duration", unit="ms", description="How long checkpoints took."
        )
        self._bytes = meter.create_histogram(
            f"{PREFIX}.checkpoint.size", unit="By", description="What checkpoints added."
        )
        self._restores = meter.create_counter(f"{PREFIX}.restores", unit="1")
        self._recoveries = meter.create_counter(f"{PREFIX}.recoveries", unit="1")
        self._steps = meter.create_counter(f"{PREFIX}.steps", unit="1")

    def start(self) -> None:
        """Send what is measured to these providers, and no longer to those of an earlier call."""
        if _in_effect:
            _in_effect[-1]._unwrap()
        _in_effect.append(self)
        self._wrap_all()

    def observe(self, store: Store) -> None:
        """Observe the metrics of a store whenever metrics are exported."""
        observed = _ObservedStore(store)
        self._observed.append(observed)
        for known in store_metrics(store, []):
            if known.name in ("checkpoint_duration", "checkpoint_size"):
                continue  # these are histograms, of every checkpoint
            make = (
                self._meter.create_observable_counter
                if known.kind == "counter"
                else self._meter.create_observable_gauge
            )
            name = f"{PREFIX}.{known.name.replace('_', '.')}"
            read = observed.reader(known.name)
            make(name, [read], unit=_UNITS[known.unit], description=known.help)

    def uninstrument(self) -> None:
        """End it: what it wrapped is as it was before it. Idempotent.

        Instruments cannot be taken back: those of a store have the values of now from then on.
        """
        if self not in _in_effect:
            return
        for observed in self._observed:
            observed.keep()
        is_latest = _in_effect[-1] is self
        _in_effect.remove(self)
        if is_latest:
            self._unwrap()
            if _in_effect:
                _in_effect[-1]._wrap_all()

    def _wrap_all(self) -> None:
        self._wrap(CheckpointTaker, "take", self._checkpoint)
        self._wrap(Restorer, "restore", self._restore)
        self._wrap(Restorer, "undo_or_redo", self._restore)
        self._wrap(Store, "close", self._close)
        self._wrap(Steps, "_run", self._step)
        self._wrap(Steps, "run_async", self._async_step)
        self._wrap(ActiveCall, "__enter__", self._tool_called)
        self._wrap(ActiveCall, "__exit__", self._tool_ended)
        for module in (mulligan.recovery.resume, mulligan.supervisor.run):
            self._wrap(module, "resume", self._recovery)
        self._wrap(Team, "start", self._start)

    def _unwrap(self) -> None:
        while self._wrapped:
            owner, name, original = self._wrapped.pop()
            setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._wrapped.append((owner, name, original))
        setattr(owner, name, wraps(original)(wrapper(original)))

    def _span(self, name: str, writer: Any) -> AbstractContextManager[Span]:
        return self._named(name, _of(writer))

    @contextmanager
    def _named(self, name: str, attributes: dict[str, Any]) -> Iterator[Span]:
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", _error_type(error))
                raise

    def _checkpoint(self, original: Any) -> Any:
        def take(taker: Any, request: Any, changes: Any = None, **options: Any) -> Any:
            writer = taker._writer
            conditional = options.get("if_changed") or request.if_files_changed
            latest = taker._history.latest() if conditional else None
            with self._span("mulligan.checkpoint", writer) as span:
                taken, done = original(taker, request, changes, **options)
                of = {**_of(writer), "mulligan.checkpoint.kind": taken.kind}
                span.set_attributes(
                    {
                        "mulligan.checkpoint.id": taken.id,
                        "mulligan.checkpoint.kind": taken.kind,
                        "mulligan.checkpoint.seq": taken.seq,
                        "mulligan.checkpoint.duration_ms": taken.cost.ms,
                        "mulligan.checkpoint.size_bytes": taken.cost.bytes,
                        "mulligan.checkpoint.has_files": taken.workspace is not None,
                        "mulligan.checkpoint.is_new": taken != latest,
                    }
                )
            if taken != latest:
                self._duration.record(taken.cost.ms, of)
                self._bytes.record(taken.cost.bytes, of)
            return taken, done

        return take

    def _restore(self, original: Any) -> Any:
        def restore(restorer: Any, *args: Any, **options: Any) -> Any:
            writer = restorer._writer
            with self._span("mulligan.restore", writer) as span:
                restored = original(restorer, *args, **options)
                span.set_attributes(
                    {
                        "mulligan.restore.mode": restored.mode,
                        "mulligan.restore.session": restored.point.session,
                        "mulligan.restore.seq": restored.point.seq,
                        "mulligan.restore.files": restored.files,
                        "mulligan.restore.problems": len(restored.problems),
                    }
                )
            self._restores.add(1, {**_of(writer), "mulligan.restore.mode": restored.mode})
            return restored

        return restore

    def _close(self, original: Any) -> Any:
        def close(store: Store) -> None:
            for observed in [one for made in _in_effect for one in made._observed]:
                if observed.store is store:
                    observed.keep()
            original(store)

        return close

    def _step(self, original: Any) -> Any:
        def run(steps: Any, name: str, function: Any, args: Any, kwargs: Any, options: Any) -> Any:
            ran = _Ran(function)
            with self._span(f"mulligan.step {name}", steps._writer) as span:
                result = original(steps, name, ran.call, args, kwargs, options)
                self._step_ended(span, steps._writer, name, ran)
            return result

        return run

    def _async_step(self, original: Any) -> Any:
        async def run_async(
            steps: Any, runner: Any, name: str, function: Any, *args: Any, **options: Any
        ) -> Any:
            ran = _Ran(function)
            with self._span(f"mulligan.step {name}", steps._writer) as span:
                wrapped = ran.awaited if inspect.iscoroutinefunction(function) else ran.call
                result = await original(steps, runner, name, wrapped, *args, **options)
                self._step_ended(span, steps._writer, name, ran)
            return result

        return run_async

    def _step_ended(self, span: Span, writer: Any, name: str, ran: _Ran) -> None:
        found = {"mulligan.step.name": name, "mulligan.step.recorded": not ran.count}
        span.set_attributes({**found, "mulligan.step.attempts": ran.count})
        self._steps.add(1, {**_of(writer), **found})

    def _tool_called(self, original: Any) -> Any:
        def enter(call: Any) -> Any:
            entered = original(call)
            # Not the current span: a call may begin and end in different threads.
            span = self._tracer.start_span(
                f"execute_tool {call.name}",
                attributes={
                    **_of(call._tools._writer),
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.type": "function",
                },
            )
            setattr(call, _SPANS, span)
            return entered

        return enter

    def _tool_ended(self, original: Any) -> Any:
        def leave(call: Any, kind: Any, error: Any, trace: Any) -> Any:
            span = call.__dict__.pop(_SPANS, None)
            try:
                return original(call, kind, error, trace)
            finally:
                if span is not None:
                    _end(span, error, call._has_failed)

        return leave

    def _recovery(self, original: Any) -> Any:
        def resume(store: Any, session: Any, plan: Any) -> Any:
            found = {"gen_ai.conversation.id": session.name, "mulligan.recovery.rung": plan.rung}
            with self._named("mulligan.recovery", found):
                resumed = original(store, session, plan)
            self._recoveries.add(1, found)
            return resumed

        return resume

    def _start(self, original: Any) -> Any:
        def start(team: Any, name: str, now: float, *, again: bool) -> int:
            records = team._records
            attributes = {
                "gen_ai.conversation.id": team._workflow.session,
                "gen_ai.agent.name": name,
                "mulligan.agent.restarts": records.restarts(name, again=again),
                **_ended(records.agent(name)),  # the start clears it
            }
            with self._named(f"mulligan.start {name}", attributes) as span:
                pid: int = original(team, name, now, again=again)
                span.set_attribute("process.pid", pid)
            return pid

        return start


_in_effect: list[Instrumentation] = []
"""The instrumentations of this process; the last one wraps, so that nothing is measured twice."""


class _ObservedStore:
    """The metrics of a store; once it is closed, those that it had then.

    The last export of a program comes after it has closed its store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._kept: list[Metric] | None = None

    def reader(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        """Return what reads one of the metrics."""

        def read(_: CallbackOptions) -> list[Observation]:
            samples = [
                sample for metric in self._now() if metric.name == name for sample in metric.samples
            ]
            return [Observation(sample.value, sample.labels) for sample in samples]

        return read

    def keep(self) -> None:
        """Read the metrics for the last time. Idempotent."""
        if self._kept is None:
            try:
                self._kept = self._read()
            except (MulliganError, OSError):
                self._kept = []  # the store is gone; who uses it is told by its own calls

    def _now(self) -> list[Metric]:
        # Without a lock: a fork amid an export would inherit it, and never close the store.
        if self._kept is None:
            try:
                return self._read()
            except (MulliganError, OSError):
                if self._kept is None:
                    raise
        return self._kept  # also if another thread has closed the store meanwhile

    def _read(self) -> list[Metric]:
        return store_metrics(self.store, self.store.sessions())


class _Ran:
    """Counts the calls of the function of a step: none, if its result was recorded before."""

    def __init__(self, function: Any) -> None:
        self.count = 0

        # With the function's own signature: a step reads the names of its arguments there.
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return function(*args, **kwargs)

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return await function(*args, **kwargs)

        self.call, self.awaited = call, awaited


def instrument(
    store: Store | None = None, *, tracer_provider: Any = None, meter_provider: Any = None
) -> Instrumentation:
    """Send spans and metrics of all sessions of this process to OpenTelemetry.

    The providers are those that the program has configured, unless others are given. With
    ``store``, the size of the store, restarts of agents and levels of drift are observed, too,
    whenever metrics are exported. It may be called for several stores: each checkpoint is one
    span, by the latest call that is in effect.
    """
    tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    made = Instrumentation(tracer, meter)
    made.start()
    if store is not None:
        made.observe(store)
    return made


def _of(writer: Any) -> dict[str, str]:
    return {"gen_ai.conversation.id": writer.record.name, "gen_ai.agent.name": writer.actor}


def _ended(agent: dict[str, Any]) -> dict[str, str]:
    """Return how the process of an agent ended, if one is recorded that did."""
    number, status = agent.get("signal"), agent.get("exit_status")
    status = -number if isinstance(number, int) else status
    return {"mulligan.agent.ended": how_ended(status)} if isinstance(status, int) else {}


def _end(span: Any, error: BaseException | None, failed: str | None) -> None:
    if error is not None:
        span.record_exception(error)
    if error is not None or failed is not None:
        # The conventions have this name for failures that no exception stands for.
        span.set_attribute("error.type", "_OTHER" if error is None else _error_type(error))
        span.set_status(Status(StatusCode.ERROR, failed or str(error)))
    span.end()


def _error_type(error: BaseException) -> str:
    kind = type(error)
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
