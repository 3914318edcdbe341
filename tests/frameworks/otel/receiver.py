"""Receivers of OTLP on loopback, over HTTP and gRPC, which decode what real exporters send."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

HANG_SECONDS = 60


class Received:
    """What arrived: spans by name, and points of metrics by name, each with its attributes.

    ``before`` is called in the receiver, before a request is answered.
    """

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before
        self.spans: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[Any]] = {}
        self.units: dict[str, str] = {}
        self._lock = threading.Lock()

    def add_spans(self, request: Any) -> None:
        self.before()
        with self._lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans.setdefault(span.name, []).append(span)

    def add_metrics(self, request: Any) -> None:
        self.before()
        with self._lock:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data"))
                        self.units[metric.name] = metric.unit
                        self.metrics[metric.name] = [*data.data_points]

    def attributes(self, span: str) -> list[dict[str, Any]]:
        return [attributes(found) for found in self.spans.get(span, [])]


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span or a point as plain values."""
    return {
        pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in of.attributes
    }


@contextmanager
def over_http(received: Received) -> Iterator[str]:
    """Receive over HTTP; yields the address that exporters send to."""
    kinds: dict[str, tuple[Any, Any, Callable[[Any], None]]] = {
        "/v1/traces": (
            trace_pb2.ExportTraceServiceRequest,
            trace_pb2.ExportTraceServiceResponse,
            received.add_spans,
        ),
        "/v1/metrics": (
            metrics_pb2.ExportMetricsServiceRequest,
            metrics_pb2.ExportMetricsServiceResponse,
            received.add_metrics,
        ),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/x-protobuf"
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                data = gzip.decompress(data)
            asked, answered, add = kinds[self.path]
            add(asked.FromString(data))
            body = answered().SerializeToString()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                return  # the exporter has given up

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Traces(trace_grpc.TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.add_spans(request)
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):  # type: ignore[misc]
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.add_metrics(request)
        return metrics_pb2.ExportMetricsServiceResponse()


@contextmanager
def over_grpc(received: Received) -> Iterator[str]:
    """Receive over gRPC; yields the address that exporters send to."""
    server = grpc.server(ThreadPoolExecutor(4))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(received), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(received), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait(HANG_SECONDS)
