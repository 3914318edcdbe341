"""OpenTelemetry in the processes that supervise agents: `mulligan run`, `up` and `resume`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mulligan import Store

SDK = "opentelemetry.sdk"


def send_telemetry(store: Store) -> None:
    """Send spans and metrics if OpenTelemetry was set up in this process.

    `opentelemetry-instrument` does that before our code runs, and its SDK sends what is left when
    the process ends. Without it, nothing is imported.
    """
    if SDK not in sys.modules:
        return
    from mulligan.integrations.otel import instrument

    click.get_current_context().call_on_close(instrument(store).uninstrument)
