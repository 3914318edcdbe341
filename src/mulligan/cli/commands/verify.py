"""mulligan verify."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import ACTOR, CliContext, Command, example
from mulligan.cli.render.progress import ProgressLine, can_show_progress
from mulligan.cli.render.report import summary
from mulligan.cli.render.text import Cell, clean, plural, print_json, size
from mulligan.cli.repair import has_repaired, repair_options
from mulligan.views.verify import report_view

if TYPE_CHECKING:
    from mulligan import LockOwner, Problem, Report, Store

BROKEN = 60

BACKGROUND_NICENESS = 10
"""How far a check beside running agents stands back."""


class Part(click.ParamType):  # type: ignore[type-arg]
    """A part of the whole on the command line: 5%."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return it as a number from 0 to 1."""
        from mulligan.upkeep.verify.settings import fraction

        try:
            return value if isinstance(value, float) else fraction(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes on the command line: 50MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        from mulligan.config.values import size as parse

        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "verify",
    cls=Command,
    epilog=example("mulligan verify", "mulligan verify --full", "mulligan verify --sample 5%"),
)
@click.option("--full", is_flag=True, help="Also read every stored byte, and replay all states.")
@click.option(
    "--sample",
    type=Part(),
    metavar="N%",
    help="Also read a random part of the stored bytes, another one each time.",
)
@click.option("--seed", type=int, metavar="N", help="Choose the same part again.")
@click.option("--rate", type=Size(), metavar="SIZE", help="Read at most this much per second.")
@click.option("--quick", is_flag=True, help="Check only the structure: the default.")
@click.option("--background", is_flag=True, hidden=True)
@repair_options
@click.pass_obj
def command(
    call: CliContext,
    full: bool,
    sample: float | None,
    seed: int | None,
    rate: int | None,
    quick: bool,
    background: bool,
) -> None:
    """Check the store, and name exactly what is broken.

    Checks the structure: every page of the journal, every event and its hash chain, every index,
    the place of every object, and that everything exists that something refers to. --full also
    compares every stored byte with its checksum or digest, and every keyframe with the events.

    Damaged content is noted: the next checkpoint of a file that still has it stores it again. A
    check that reads bytes, or finds damage, is recorded as an event; `mulligan status` shows the
    last one. The exit code is 60 if anything is broken.

    --repair rebuilds the journal and the index from what is intact, reads lost files again from a
    workspace that still has them, and marks the checkpoints that lost something. No process may
    have the store open. The damaged originals are kept in the store until --discard, which asks
    first; without a terminal, --yes is needed. The exit code is 60 if something is lost.
    """
    if has_repaired(call):
        return
    if full + quick + (sample is not None) > 1:
        raise click.UsageError("Choose one of --full, --sample and --quick.")
    if seed is not None and sample is None:
        raise click.UsageError("--seed goes with --sample.")
    if background:
        os.nice(BACKGROUND_NICENESS)
    began = time.monotonic()
    report = _check(call, full, sample, seed, rate, background=background)
    if report is None:  # another process checks it in the background
        return
    recorded = _record(call, report, time.monotonic() - began)
    if call.json:
        print_json(report_view(report, recorded=recorded))
    else:
        _print(report, call.quiet)
    if not report.ok:
        raise click.exceptions.Exit(BROKEN)


def _check(
    call: CliContext,
    full: bool,
    sample: float | None,
    seed: int | None,
    rate: int | None,
    *,
    background: bool,
) -> Report | None:
    from mulligan.errors import UpkeepBusy
    from mulligan.store import engine_of
    from mulligan.upkeep.lock import VERIFY, upkeep_lock
    from mulligan.upkeep.verify.settings import Pace

    store = call.open_store(salvage=True)
    engine = engine_of(store)
    pace = None if rate is None else Pace(rate, engine.clock)

    def run(progress: Callable[[str], None] | None) -> Report:
        return store.verify(full, progress, sample=sample, seed=seed, on_read=pace)

    try:
        if not background:
            return _with_progress(run)
        with upkeep_lock(engine, wait=False, name=VERIFY):
            return run(None)
    except UpkeepBusy:
        return None
    finally:
        store.close()


def _with_progress(run: Callable[[Callable[[str], None] | None], Report]) -> Report:
    if not can_show_progress():
        return run(None)
    line = ProgressLine()
    try:
        return run(lambda what: line.show(clean(f"verifying {what}")))
    finally:
        line.clear()


def _record(call: CliContext, report: Report, seconds: float) -> bool:
    """Record the result on the timeline; a quick check that finds nothing only looks."""
    from mulligan.errors import MulliganError
    from mulligan.upkeep.verify.record import record_report

    if report.ok and not report.full and report.sample is None:
        return False
    try:
        # Never wait for a stopped writer: what was found must be shown.
        store = call.open_store(on_wait=_refuse_to_wait)
        if (session := _session(call, store)) is None:
            return False
        record_report(store.session(session, create=False, actor=ACTOR), report, seconds)
        return True
    except MulliganError as error:
        # A damaged journal, a full disk, a store for reading only: the report matters more.
        click.echo(clean(f"Warning: the result is not on the timeline: {error}"), err=True)
        return False


def _refuse_to_wait(holder: LockOwner | None) -> None:
    """Raise ``StoreInUse`` for a writer that is stopped; other writers end soon."""
    from mulligan.errors import StoreInUse

    # An exception in another thread would not reach the one that waits.
    if holder is not None and holder.is_stopped and current_thread() is main_thread():
        raise StoreInUse(f"Process {holder.pid} is stopped and holds the write lock.")


def _session(call: CliContext, store: Store) -> str | None:
    """Return the session that records the result: the named or current one, or the last in use."""
    names = {session.name: session.updated for session in store.sessions()}
    for name in (call.session, call.current_session(store)):
        if name in names:
            return name
    return max(names, key=lambda name: names[name], default=None)


def _print(report: Report, quiet: bool) -> None:
    for problem in report.problems:
        _print_line("✗", "red", problem)
    for warning in report.warnings:
        _print_line("!", "yellow", warning)
    if report.ok and not quiet:
        sign = Cell("✓", "green").styled()
        click.echo(f"{sign} {summary(report)}: no problems found{_how(report)}.")
    if report.ok and not quiet and report.unreferenced_bytes:
        click.echo(f"{size(report.unreferenced_bytes)} are unreferenced and can be collected.")
    if not report.ok:
        click.echo(f"{plural(len(report.problems), 'problem')} in {summary(report)}.", err=True)
        click.echo("`mulligan verify --repair --dry-run` shows what a repair would do.", err=True)


def _how(report: Report) -> str:
    """Return how much was read, as the end of a sentence."""
    if report.full:
        return f", all {size(report.stored_bytes)} read"
    if report.sample is not None:
        return f", {size(report.read_bytes)} of {size(report.stored_bytes)} read"
    return " by the quick check; --full reads every byte"


def _print_line(sign: str, colour: str, found: Problem) -> None:
    what = Cell(f"{sign} {found.what}", colour).styled()
    click.echo(f"{what}  {clean(found.where)}: {clean(found.detail)}")
