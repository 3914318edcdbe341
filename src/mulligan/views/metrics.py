"""Metrics of a store, and their text for Prometheus.

One table for ``mulligan status --prometheus`` and for OpenTelemetry: names, units and what each
number means are the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from mulligan.drift.ladder import RUNGS
from mulligan.views.drift import drift_status
from mulligan.views.sessions import agent_views, latest_checkpoint, store_summary

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.store import Store

PREFIX = "mulligan"


class Sample(msgspec.Struct, frozen=True):
    """One number, and what it is of."""

    value: float
    labels: dict[str, str] = {}


class Metric(msgspec.Struct, frozen=True):
    """One metric: its name, without prefix, unit and the like, and its present samples."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    """In the words of Prometheus: ``bytes``, ``seconds``, or empty for a count."""
    help: str
    samples: list[Sample]


def store_metrics(store: Store, sessions: Iterable[Session]) -> list[Metric]:
    """Return what is known of a store and of some of its sessions now; nothing is written."""
    sessions = list(sessions)
    return [
        Metric("store_size", "gauge", "bytes", "What the store takes on disk.", [_size(store)]),
        Metric("sessions", "gauge", "", "Sessions of the store.", [Sample(len(sessions))]),
        Metric(
            "session_events",
            "counter",
            "",
            "Events on the timeline of a session.",
            [Sample(session.head.seq, {"session": session.name}) for session in sessions],
        ),
        *_checkpoints(sessions),
        *_agents(sessions),
    ]


def prometheus(metrics: Iterable[Metric]) -> str:
    """Return metrics in the text format that Prometheus reads."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        name = prometheus_name(metric)
        lines.append(f"# HELP {name} {metric.help}")
        lines.append(f"# TYPE {name} {metric.kind}")
        lines += [f"{name}{_labels(one.labels)} {_number(one.value)}" for one in metric.samples]
    return "\n".join(lines) + "\n"


def prometheus_name(metric: Metric) -> str:
    """Return the name of a metric with prefix, unit and, for a counter, ``_total``."""
    parts = [PREFIX, metric.name, metric.unit, "total" if metric.kind == "counter" else ""]
    return "_".join(part for part in parts if part)


def _size(store: Store) -> Sample:
    return Sample(0 if store.path is None else store_summary(store)["size_bytes"])


def _checkpoints(sessions: list[Session]) -> list[Metric]:
    latest = [(session.name, latest_checkpoint(session)) for session in sessions]
    found = [({"session": name}, one) for name, one in latest if one is not None]
    return [
        Metric(
            "checkpoint_duration",
            "gauge",
            "seconds",
            "How long the latest checkpoint took.",
            [Sample(one.cost.ms / 1000, labels) for labels, one in found],
        ),
        Metric(
            "checkpoint_size",
            "gauge",
            "bytes",
            "What the latest checkpoint added to the store.",
            [Sample(one.cost.bytes, labels) for labels, one in found],
        ),
        Metric(
            "checkpoint_timestamp",
            "gauge",
            "seconds",
            "When the latest checkpoint was taken.",
            [Sample(one.time.timestamp(), labels) for labels, one in found],
        ),
    ]


def _agents(sessions: list[Session]) -> list[Metric]:
    agents = [
        ({"session": session.name, "agent": view["name"]}, view)
        for session in sessions
        for view in agent_views(session)
    ]
    return [
        Metric(
            "agent_restarts",
            "counter",
            "",
            "How often the supervisor started an agent again.",
            [Sample(view["restarts"], labels) for labels, view in agents],
        ),
        Metric(
            "agent_alive",
            "gauge",
            "",
            "Whether the process of an agent is alive.",
            [Sample(int(bool(view["is_alive"])), labels) for labels, view in agents],
        ),
        Metric(
            "drift_level",
            "gauge",
            "",
            f"The last response to drift, from 1 ({RUNGS[0]}) to {len(RUNGS)} ({RUNGS[-1]}).",
            [
                Sample(_level(found), {"session": session.name, "agent": found["agent"]})
                for session in sessions
                for found in drift_status(session)
            ],
        ),
    ]


def _level(found: dict[str, object]) -> int:
    if found["isolated"]:
        return len(RUNGS)
    rung = found["rung"]
    return RUNGS.index(rung) + 1 if rung in RUNGS else 0


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
