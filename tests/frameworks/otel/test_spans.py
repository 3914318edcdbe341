"""Spans and metrics of OpenTelemetry, read from the SDK's own exporters."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.needed import needed

needed("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE, ErrorTypeValues

import mulligan
from mulligan import aio
from mulligan.integrations.otel import instrument
from mulligan.session.checkpoint_taker import CheckpointTaker


class Telemetry:
    """What was exported."""

    def __init__(self) -> None:
        self.spans_exported = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans_exported))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self.reader])

    def spans(self, name: str) -> list[Any]:
        return [s for s in self.spans_exported.get_finished_spans() if s.name == name]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mulligan.Store]:
    with mulligan.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def telemetry(store: mulligan.Store) -> Iterator[Telemetry]:
    made = Telemetry()
    instrumentation = instrument(store, tracer_provider=made.tracers, meter_provider=made.meters)
    yield made
    instrumentation.uninstrument()


def test_a_checkpoint_is_a_span_with_its_cost(store: mulligan.Store, telemetry: Telemetry) -> None:
    session = store.session("chat")
    taken = session.checkpoint("routine")
    with session.batch() as batch:
        session.state.set("x", 1)
        batch.checkpoint("manual")
    session.checkpoint(if_changed=True)  # nothing changed: no new one, and no measurement
    first, second, third = telemetry.spans("mulligan.checkpoint")
    assert first.attributes["mulligan.checkpoint.id"] == taken.id
    assert first.attributes["mulligan.checkpoint.duration_ms"] == taken.cost.ms
    assert first.attributes["gen_ai.conversation.id"] == "chat"
    assert first.attributes["gen_ai.agent.name"] == "main"
    assert second.attributes["mulligan.checkpoint.kind"] == "manual"
    assert third.attributes["mulligan.checkpoint.is_new"] is False
    assert sum(point.count for point in telemetry.points("mulligan.checkpoint.duration")) == 2
    assert sum(point.count for point in telemetry.points("mulligan.checkpoint.size")) == 2


def test_restores_are_spans(store: mulligan.Store, telemetry: Telemetry) -> None:
    session = store.session("chat")
    point = session.checkpoint()
    session.state.set("x", 1)
    session.restore(point)
    session.undo()
    modes = [s.attributes["mulligan.restore.mode"] for s in telemetry.spans("mulligan.restore")]
    assert modes == ["restore", "undo"]
    assert {point.value for point in telemetry.points("mulligan.restores")} == {1}


def test_steps_say_whether_they_ran(store: mulligan.Store, telemetry: Telemetry) -> None:
    for _ in range(2):
        store.session("chat").step("fetch", lambda url: url, "u")
    recorded = [
        s.attributes["mulligan.step.recorded"] for s in telemetry.spans("mulligan.step fetch")
    ]
    assert recorded == [False, True]

    async def run() -> None:
        async with await aio.open(str(store.path)) as opened:
            session = await opened.session("other")

            async def fetch() -> int:
                return 1

            assert await session.step("get", fetch) == 1
            await session.close()

    asyncio.run(run())
    [span] = telemetry.spans("mulligan.step get")
    assert span.attributes["mulligan.step.attempts"] == 1


def test_a_failed_step_is_a_failed_span(store: mulligan.Store, telemetry: Telemetry) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.session("chat").step("fail", fail)
    [span] = telemetry.spans("mulligan.step fail")
    assert not span.status.is_ok
    assert span.events[0].name == "exception"
    assert span.attributes["error.type"] == "ValueError"


def test_tools_have_the_attributes_of_generative_ai(
    store: mulligan.Store, telemetry: Telemetry
) -> None:
    session = store.session("chat")
    with session.tools.call("search", {"q": "x"}, id="call-1") as call:
        call.returned("found")
    with pytest.raises(OSError, match="gone"), session.tools.call("search"):
        raise OSError("gone")
    with session.tools.call("search") as call:
        call.failed("nothing found")
    first, second, third = telemetry.spans("execute_tool search")
    assert first.attributes == {
        gen_ai_attributes.GEN_AI_OPERATION_NAME: "execute_tool",
        gen_ai_attributes.GEN_AI_TOOL_NAME: "search",
        gen_ai_attributes.GEN_AI_TOOL_CALL_ID: "call-1",
        gen_ai_attributes.GEN_AI_TOOL_TYPE: "function",
        gen_ai_attributes.GEN_AI_CONVERSATION_ID: "chat",
        gen_ai_attributes.GEN_AI_AGENT_NAME: session.actor,
    }
    assert first.status.is_ok
    assert not second.status.is_ok
    assert second.attributes[ERROR_TYPE] == "OSError"
    assert not third.status.is_ok
    assert third.attributes[ERROR_TYPE] == ErrorTypeValues.OTHER.value


def test_a_recovery_is_a_span(store: mulligan.Store, telemetry: Telemetry, tmp_path: Path) -> None:
    from mulligan.recovery.plan import plan_resume
    from mulligan.recovery.resume import open_session
    from mulligan.supervisor import run as supervised

    session = store.session("team")
    session.state.set("x", 1)
    with open_session(store, "team") as held:
        plan = plan_resume(held)
        supervised.resume(store, held, plan)
    [span] = telemetry.spans("mulligan.recovery")
    assert span.attributes["gen_ai.conversation.id"] == "team"
    inner = [s for s in telemetry.spans("mulligan.checkpoint") if s.parent is not None]
    assert inner[0].parent.span_id == span.context.span_id


def test_the_store_is_observed_when_metrics_are_exported(
    store: mulligan.Store, telemetry: Telemetry
) -> None:
    session = store.session("chat")
    session.internal.state.set("agents/coder", {"restarts": 2})
    [size] = telemetry.points("mulligan.store.size")
    assert size.value > 0
    [restarts] = telemetry.points("mulligan.agent.restarts")
    assert (restarts.value, dict(restarts.attributes)) == (2, {"session": "chat", "agent": "coder"})


@pytest.mark.parametrize("end", ["close", "uninstrument"])
def test_the_last_export_has_the_last_values_of_a_store(tmp_path: Path, end: str) -> None:
    """It comes when the process ends, after the program has closed its store."""
    made = Telemetry()
    store = mulligan.open(tmp_path / "store")
    instrumentation = instrument(store, meter_provider=made.meters)
    store.session("chat").internal.state.set("agents/coder", {"restarts": 2})
    if end == "close":
        store.close()
        instrumentation.uninstrument()
    else:
        instrumentation.uninstrument()
        store.session("chat").internal.state.set("agents/coder", {"restarts": 3})
        store.close()
    [restarts] = made.points("mulligan.agent.restarts")
    assert restarts.value == 2


def test_a_process_that_is_forked_amid_an_export_closes_the_store(
    store: mulligan.Store, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that exports does not go on there, so nothing may wait for it."""
    children: list[int] = []

    def sessions(of: mulligan.Store) -> list[mulligan.Session]:
        monkeypatch.undo()
        children.append(os.fork())
        if children[-1] == 0:
            try:
                of.close()
            finally:
                os._exit(0)
        return of.sessions()

    monkeypatch.setattr(mulligan.Store, "sessions", sessions)
    assert telemetry.points("mulligan.sessions")[0].value == 0
    [child] = children
    assert os.waitpid(child, 0)[1] == 0


def test_a_store_that_is_closed_amid_an_export_has_its_last_values(
    store: mulligan.Store, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sessions(of: mulligan.Store) -> list[mulligan.Session]:
        monkeypatch.undo()
        of.close()
        return of.sessions()

    monkeypatch.setattr(mulligan.Store, "sessions", sessions)
    assert telemetry.points("mulligan.sessions")[0].value == 0


def test_a_store_that_is_gone_is_closed_without_values(tmp_path: Path) -> None:
    made = Telemetry()
    store = mulligan.open(tmp_path / "store")
    instrumentation = instrument(store, meter_provider=made.meters)
    shutil.rmtree(tmp_path / "store")
    store.close()
    instrumentation.uninstrument()
    assert made.points("mulligan.sessions") == []


def test_afterwards_everything_is_as_it_was(store: mulligan.Store) -> None:
    before = CheckpointTaker.take
    made = Telemetry()
    instrumentation = instrument(tracer_provider=made.tracers, meter_provider=made.meters)
    assert CheckpointTaker.take is not before
    instrumentation.uninstrument()
    instrumentation.uninstrument()
    assert CheckpointTaker.take is before
    store.session("chat").checkpoint()
    assert made.spans("mulligan.checkpoint") == []


def test_each_checkpoint_is_one_span_whichever_calls_are_in_effect(store: mulligan.Store) -> None:
    """One for each of several stores, say, that end in any order."""
    before = CheckpointTaker.take
    first, second = Telemetry(), Telemetry()
    one = instrument(store, tracer_provider=first.tracers, meter_provider=first.meters)
    two = instrument(tracer_provider=second.tracers, meter_provider=second.meters)
    three = instrument(tracer_provider=second.tracers, meter_provider=second.meters)
    session, seen = store.session("chat"), []

    def counted() -> tuple[int, int]:
        session.checkpoint()
        return len(first.spans("mulligan.checkpoint")), len(second.spans("mulligan.checkpoint"))

    seen.append(counted())
    two.uninstrument()
    seen.append(counted())
    three.uninstrument()
    seen.append(counted())
    one.uninstrument()
    seen.append(counted())
    assert seen == [(0, 1), (0, 2), (1, 2), (1, 2)]
    assert CheckpointTaker.take is before


def test_nothing_is_imported_until_it_is_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys, mulligan; s = mulligan.open('.').session('a'); s.checkpoint(); "
        "print([m for m in sys.modules if 'opentelemetry' in m or '.integrations' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
