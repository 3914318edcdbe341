"""Shared by commands that send requests to a running team: time limits, and late agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext
from mulligan.cli.render.text import clean

if TYPE_CHECKING:
    from mulligan.supervisor.requests import Answer


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time span on the command line, as in a workflow: 30s, 5m, 2h."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        from mulligan.config.values import duration

        try:
            number = isinstance(value, str) and value.replace(".", "", 1).isdecimal()
            return duration(float(value) if number else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def tell_of_late(call: CliContext, done: Answer) -> None:
    """Name the agents that did not reach a safe point in time."""
    if done.late and not call.quiet and not call.json:
        click.echo(clean(f"Not at a safe point: {', '.join(done.late)}."), err=True)
