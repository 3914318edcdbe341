"""Drift as text: a sparkline per signal, alarms with their evidence, responses."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from mulligan.cli.render.terminal import encoding_of
from mulligan.cli.render.text import Cell, ago, clean, echo_columns, local, plural

if TYPE_CHECKING:
    from mulligan.drift.detector import Alarm
    from mulligan.drift.replay import Replay
    from mulligan.session.runtime.drift_report import AgentDrift, RecordedResponse

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.:-=+*#"
THRESHOLD = 0.5


def is_plain(variables: Mapping[str, str]) -> bool:
    """Whether the terminal shows ASCII only: TERM=dumb, NO_UTF8, or another encoding."""
    encoding = encoding_of(sys.stdout).lower().replace("-", "")
    return variables.get("TERM") == "dumb" or bool(variables.get("NO_UTF8")) or encoding != "utf8"


def sparkline(values: Sequence[float], signs: str) -> str:
    """Return values from 0 to 1 as one sign each."""
    last = len(signs) - 1
    return "".join(signs[min(last, int(max(0.0, value) * len(signs)))] for value in values)


def print_agent(found: AgentDrift, *, explain: bool) -> None:
    """Print the drift of one agent."""
    alarms = [one for one in found.alarms if one.alarm.acts]
    warnings = len(found.alarms) - len(alarms)
    said = f"{plural(len(alarms), 'alarm')}, {plural(warnings, 'warning')}"
    counted = plural(found.observations, "observation")
    click.echo(f"{Cell(clean(found.agent), bold=True).styled()}  {said} in {counted}")
    if found.isolated is not None:
        why = f"Isolated since {local(found.isolated.at)}: {found.isolated.why}."
        click.echo(Cell(clean(why), "red").styled())
        click.echo(f"`mulligan drift release {clean(found.agent)}` lets it go on.")
    _print_signals({s.signal: (s.series, s.highest, s.score) for s in found.signals})
    shown = found.alarms if explain else found.alarms[-1:]
    for one in shown:
        print_alarm(one.alarm, f"{ago(one.at)}: ", explain=explain)
    if explain:
        for response in found.responses:
            click.echo(f"  {_response(response)}")


def print_replay(found: Replay, *, explain: bool) -> None:
    """Print what the detector found in a recorded run."""
    fired = "no alarm" if found.fired_at is None else f"alarm at step {found.fired_at}"
    colour = None if found.fired_at is None else "red"
    name = Cell(clean(found.id), bold=True).styled()
    click.echo(f"{name}  {Cell(fired, colour).styled()}, {plural(found.steps, 'step')}")
    if explain:
        highest = {name: max(scores, default=0.0) for name, scores in found.scores.items()}
        _print_signals(
            {
                n: (_short(scores), highest[n], scores[-1])
                for n, scores in found.scores.items()
                if scores
            }
        )
        for alarm in found.alarms:
            print_alarm(alarm, "", explain=True)


def print_alarm(alarm: Alarm, when: str, *, explain: bool) -> None:
    """Print the sentence of an alarm, and its events."""
    colour = "red" if alarm.acts else "yellow"
    what = "alarm" if alarm.acts else "warning"
    events = " ".join(f"#{seq}" for seq in alarm.evidence)
    click.echo(f"  {Cell(what, colour).styled()} {when}{clean(alarm.why)} ({events})")


def _print_signals(found: Mapping[str, tuple[Sequence[float], float, float]]) -> None:
    """Print the signals that have seen anything, the highest first."""
    signs = ASCII if is_plain(os.environ) else BLOCKS
    known = sorted(found.items(), key=lambda one: -one[1][1])
    rows = [
        [
            Cell(f"  {name}"),
            Cell(sparkline(series, signs), _colour(highest)),
            Cell(f"highest {highest:.2f}", _colour(highest)),
            Cell(f"now {now:.2f}", dim=True),
        ]
        for name, (series, highest, now) in known
        if highest > 0
    ]
    if rows:
        echo_columns(rows)


def _colour(highest: float) -> str | None:
    return "red" if highest >= THRESHOLD else None


def _short(scores: Sequence[float]) -> list[float]:
    """Return at most forty values: the highest of each stretch."""
    stride = -(-len(scores) // 40)
    return [max(scores[n : n + stride]) for n in range(0, len(scores), stride)]


def _response(response: RecordedResponse) -> str:
    what = response.rung if not response.attempt else f"{response.rung} {response.attempt}"
    back = f" to #{response.to}" if response.to is not None else ""
    wait = f", {response.wait:.0f} s before the cooldown ends" if response.wait else ""
    return f"{local(response.at)}  #{response.seq}  {what}{back}{wait}"
