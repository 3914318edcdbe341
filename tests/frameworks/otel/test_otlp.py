"""Spans and metrics as a receiver of OTLP decodes them, sent by OpenTelemetry's own exporters."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.needed import needed

needed("opentelemetry.exporter.otlp.proto.http")
needed("opentelemetry.exporter.otlp.proto.grpc")

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetricExporter,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
    OTLPSpanExporter as GrpcSpanExporter,
)
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import mulligan
from mulligan.integrations.otel import instrument
from tests.frameworks.otel.receiver import (
    HANG_SECONDS,
    Received,
    attributes,
    over_grpc,
    over_http,
)

HOUR = 3_600_000


@contextmanager
def exporting(store: mulligan.Store, spans: Any, metrics: Any) -> Iterator[tuple[Any, Any]]:
    """Instrument a store with exporters that send in the background, as programs do."""
    resource = Resource.create({"service.name": "tested"})
    tracers = TracerProvider(resource=resource)
    # Sent when it is flushed: nothing here depends on a timer.
    tracers.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=HOUR))
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=HOUR)
    meters = MeterProvider(resource=resource, metric_readers=[reader])
    made = instrument(store, tracer_provider=tracers, meter_provider=meters)
    try:
        yield tracers, meters
    finally:
        made.uninstrument()


def exporters(protocol: str, address: str) -> tuple[Any, Any]:
    if protocol == "grpc":
        return GrpcSpanExporter(address, insecure=True), GrpcMetricExporter(address, insecure=True)
    zipped = Compression.Gzip
    return (
        OTLPSpanExporter(f"{address}/v1/traces", compression=zipped),
        OTLPMetricExporter(f"{address}/v1/metrics", compression=zipped),
    )


def work(store: mulligan.Store, directory: Path) -> mulligan.Checkpoint:
    """Do everything that has a span."""
    from mulligan.recovery.plan import plan_resume
    from mulligan.recovery.resume import open_session
    from mulligan.supervisor import run as supervised

    (directory / "a.txt").write_text("one")
    session = store.session("chat", workspace=directory)
    taken = session.checkpoint("routine", note="first")
    (directory / "a.txt").write_text("two")
    session.restore(taken)
    session.step("fetch", lambda url: url, "u")
    with session.tools.call("search", {"q": "x"}, id="call-1") as call:
        call.returned("found")
    with pytest.raises(OSError, match="gone"), session.tools.call("search", id="call-2"):
        raise OSError("gone")
    session.close()
    with open_session(store, "chat") as held:
        supervised.resume(store, held, plan_resume(held))
    return taken


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_everything_arrives_with_its_attributes(tmp_path: Path, protocol: str) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    received = Received()
    receiving = over_grpc if protocol == "grpc" else over_http
    with receiving(received) as address, mulligan.open(tmp_path / "store") as store:
        with exporting(store, *exporters(protocol, address)) as (tracers, meters):
            taken = work(store, directory)
            assert tracers.force_flush()
            assert meters.force_flush()
        tracers.shutdown()
        meters.shutdown()
    of = {"gen_ai.conversation.id": "chat", "gen_ai.agent.name": "main"}
    first = received.attributes("mulligan.checkpoint")[0]
    assert first == {
        **of,
        "mulligan.checkpoint.id": taken.id,
        "mulligan.checkpoint.kind": "routine",
        "mulligan.checkpoint.seq": taken.seq,
        "mulligan.checkpoint.duration_ms": taken.cost.ms,
        "mulligan.checkpoint.size_bytes": taken.cost.bytes,
        "mulligan.checkpoint.has_files": True,
        "mulligan.checkpoint.is_new": True,
    }
    [restored] = received.attributes("mulligan.restore")
    assert restored | of == restored
    assert restored["mulligan.restore.mode"] == "restore"
    assert restored["mulligan.restore.seq"] == taken.seq
    assert restored["mulligan.restore.files"] == 1
    [step] = received.attributes("mulligan.step fetch")
    facts = {"name": "fetch", "recorded": False, "attempts": 1}
    assert step == {**of, **{f"mulligan.step.{name}": fact for name, fact in facts.items()}}
    done, failed = received.attributes("execute_tool search")
    assert done == {
        **of,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": "call-1",
        "gen_ai.tool.type": "function",
    }
    assert failed["error.type"] == "OSError"
    statuses = [span.status.code for span in received.spans["execute_tool search"]]
    assert statuses == [Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR]
    [recovery] = received.spans["mulligan.recovery"]
    assert attributes(recovery)["gen_ai.conversation.id"] == "chat"
    assert recovery.span_id in [s.parent_span_id for s in received.spans["mulligan.checkpoint"]]
    assert metrics_of(received) >= {
        ("mulligan.checkpoint.duration", "ms"),
        ("mulligan.checkpoint.size", "By"),
        ("mulligan.steps", "1"),
        ("mulligan.restores", "1"),
        ("mulligan.recoveries", "1"),
        ("mulligan.store.size", "By"),
        ("mulligan.sessions", "1"),
        ("mulligan.session.events", "1"),
    }
    [duration] = [
        point
        for point in received.metrics["mulligan.checkpoint.duration"]
        if attributes(point)["mulligan.checkpoint.kind"] == "routine"
    ]
    assert duration.count == 1
    assert attributes(duration) | of == attributes(duration)
    [size] = received.metrics["mulligan.store.size"]
    assert size.as_int + size.as_double > 0
    [events] = received.metrics["mulligan.session.events"]
    assert attributes(events) == {"session": "chat"}


def metrics_of(received: Received) -> set[tuple[str, str]]:
    return {(name, received.units[name]) for name, points in received.metrics.items() if points}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_receiver_that_does_not_answer_delays_no_checkpoint(
    tmp_path: Path, protocol: str
) -> None:
    """While an export hangs, checkpoints, restores and steps go on, and are all taken."""
    held, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        held.set()
        go_on.wait(HANG_SECONDS)

    received = Received(hang)
    receiving = over_grpc if protocol == "grpc" else over_http
    with receiving(received) as address, mulligan.open(tmp_path / "store") as store:
        with exporting(store, *exporters(protocol, address)) as (tracers, meters):
            session = store.session("chat")
            first = session.checkpoint()
            flushing = [
                threading.Thread(target=one.force_flush, daemon=True) for one in (tracers, meters)
            ]
            for thread in flushing:
                thread.start()
            assert held.wait(HANG_SECONDS)
            for number in range(3000):  # more than the queue of the exporter holds
                session.step(f"step {number}", lambda: None)
            session.state.set("a", 1)
            session.restore(first)
            last = session.checkpoint("routine", label="last")
            assert not go_on.is_set()
            go_on.set()
            for thread in flushing:
                thread.join(HANG_SECONDS)
        tracers.shutdown()
        meters.shutdown()
        assert session.checkpoints.at("last") == last
        assert store.verify().ok


def test_a_receiver_that_is_not_there_breaks_no_checkpoint(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: every connection is refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        spans = OTLPSpanExporter(f"{address}/v1/traces", timeout=0.001)
        metrics = OTLPMetricExporter(f"{address}/v1/metrics", timeout=0.001)
        with mulligan.open(tmp_path / "store") as store:
            with exporting(store, spans, metrics) as (tracers, meters):
                session = store.session("chat")
                before = session.checkpoint()
                tracers.force_flush()
                meters.force_flush()
                session.state.set("a", 1)
                session.restore(before)
                assert session.checkpoint("routine") in session.checkpoints()
            tracers.shutdown()
            meters.shutdown()
            assert store.verify().ok


def test_no_exporter_is_imported_with_it() -> None:
    code = (
        "import sys, mulligan.integrations.otel; "
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', "
        "'opentelemetry.exporter', 'opentelemetry.proto', 'grpc', 'requests'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
