"""mulligan prune."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    echo_broken,
    echo_columns,
    plural,
    print_json,
    size,
)
from mulligan.cli.upkeep import BACKGROUND_NICENESS, BACKGROUND_SECONDS
from mulligan.views.upkeep import prune_view

if TYPE_CHECKING:
    from mulligan import Store
    from mulligan.upkeep.retention.policy import Policy
    from mulligan.upkeep.retention.prune import Pruned, PrunePlan, Pruner
    from mulligan.upkeep.retention.rulings import Candidate, Ruling

EXAMPLE = example(
    "mulligan prune --dry-run",
    "mulligan prune --clear recovery",
    "mulligan prune --keep-last 10 --quota 20GB",
)

RULES = ("keep_last", "keep_within", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly")
BUSY_HINT = "Nothing was changed. Try again when it is done, or use --wait."
COUNT = click.IntRange(min=0)


@click.command("prune", cls=Command, epilog=EXAMPLE)
@click.option("-n", "--dry-run", is_flag=True, help="Explain every line, and change nothing.")
@click.option("--clear", "cleared", metavar="KIND", multiple=True, help="Keep none of this kind.")
@click.option("--keep-last", type=COUNT, help="The last ones of each agent.")
@click.option("--keep-within", metavar="TIME", help="All of the last time, such as 12h or 7d.")
@click.option("--keep-hourly", type=COUNT, help="The newest of each of this many hours.")
@click.option("--keep-daily", type=COUNT, help="The same for days.")
@click.option("--keep-weekly", type=COUNT, help="The same for weeks.")
@click.option("--keep-monthly", type=COUNT, help="The same for months.")
@click.option("--keep-good", type=COUNT, help="The last ones that are marked good.")
@click.option("--undo-window", metavar="TIME", help="How far back undo reaches.")
@click.option("--quota", metavar="SIZE", help="How large the store may be, such as 20GB.")
@click.option("-v", "--verbose", is_flag=True, help="Also list every checkpoint that stays.")
@click.option("--background", is_flag=True, hidden=True)
@click.option("--wait", is_flag=True, help="Wait until upkeep in another process has ended.")
@click.pass_obj
def command(
    call: CliContext,
    /,
    dry_run: bool,
    cleared: tuple[str, ...],
    verbose: bool,
    background: bool,
    wait: bool,
    **options: Any,
) -> None:
    """Remove the checkpoints that the retention policy does not keep, and free their space.

    This happens by itself while agents run. Options take precedence over
    [retention] of the workflow, the workflow over config.toml of the store, and that over the
    defaults. --keep-last to --keep-monthly replace the rules for routine and pre_operation
    checkpoints and for kinds of your own. Labelled, pinned and manual checkpoints stay, and so does
    what a fork, an undo, an unfinished restore or an open operation needs.

    What is removed is listed with the rule, and what stays is counted by rule; --dry-run and
    --verbose list all. Bytes are those of files that only removed checkpoints hold. Bytes that are
    stored together with others are freed later, by a prune that finds enough of them in a pack.
    The exit code is 29 if what must be kept is larger than the quota.
    """
    if background:
        os.nice(BACKGROUND_NICENESS)
        call.open_store().maintain(BACKGROUND_SECONDS)
        return
    store = call.open_store(read_only=dry_run)
    pruner = _pruner(store, options)
    if dry_run:
        plan, pruned = pruner.plan(cleared, count_bytes=True), None
    else:
        pruned = _prune(store, pruner, cleared, wait=wait)
        plan = pruned.plan
    known = {one.kind for one in plan.candidates}
    for kind in cleared:
        if kind not in known:
            click.echo(clean(f"No checkpoint is of the kind {kind!r}."), err=True)
    if call.json:
        print_json(prune_view(plan, pruned))
    else:
        _print(call, plan, pruned, lists_all=verbose or dry_run)
    if pruned is not None:
        _check_quota(plan.quota, pruned.size_after)


def _pruner(store: Store, options: dict[str, Any]) -> Pruner:
    from pathlib import Path

    from mulligan.store import engine_of
    from mulligan.upkeep.retention.policy import read_policy
    from mulligan.upkeep.retention.prune import Pruner

    changes = {name: _value(name, value) for name, value in options.items() if value is not None}
    rules = {name: changes.pop(name) for name in RULES if name in changes}

    def adjust(policy: Policy) -> Policy:
        from mulligan.upkeep.retention.policy import with_options

        try:
            return with_options(policy, rules, changes)
        except ValueError as error:
            raise click.UsageError(f"These options contradict the policy: {error}.") from error

    return Pruner(engine_of(store), read_policy(Path(str(store.path))), adjust)


def _value(name: str, value: Any) -> Any:
    from mulligan.config import values

    readers = {
        "keep_within": values.duration,
        "undo_window": values.duration,
        "quota": values.size,
    }
    if name not in readers or value == "0":
        return value if name not in readers else 0
    try:
        return readers[name](value)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'--{name.replace('_', '-')}'") from error


def _prune(store: Store, pruner: Pruner, cleared: tuple[str, ...], *, wait: bool) -> Pruned:
    from mulligan.errors import UpkeepBusy
    from mulligan.store import engine_of
    from mulligan.upkeep.lock import upkeep_lock
    from mulligan.upkeep.maintain import record_pruned

    engine = engine_of(store)
    try:
        with upkeep_lock(engine, wait=wait):
            pruned = pruner.run(cleared, count_bytes=True)
            record_pruned(engine, pruned)
    except UpkeepBusy as error:
        raise UpkeepBusy(str(error), hint=BUSY_HINT) from error
    return pruned


def _print(call: CliContext, plan: PrunePlan, pruned: Pruned | None, *, lists_all: bool) -> None:
    if call.quiet:
        for ruling in plan.plan.remove:
            click.echo(ruling.id)
        return
    candidates = {one.id: one for one in plan.candidates}
    listed = plan.plan.rulings if lists_all else plan.plan.remove
    echo_columns([_row(one, candidates[one.id]) for one in listed], below=True)
    if not lists_all:
        counts = Counter(ruling.rule for ruling in plan.plan.keep)
        echo_columns([_counted(rule, counts[rule]) for rule in sorted(counts)])
    count = plural(pruned.removed if pruned else len(plan.plan.remove), "checkpoint")
    kept = f"{plural(len(plan.plan.keep), 'checkpoint')} kept"
    if pruned is None:
        freed = f", which hold {size(plan.freed)} of files" if plan.freed else ""
        echo_broken(f"Would remove {count}{freed}; {kept}. Nothing was changed.")
    else:
        quota = f" of {size(plan.quota)}" if plan.quota else ""
        click.echo(f"Removed {count}; {kept}.")
        echo_broken(f"{_freed(plan, pruned)}The store has {size(pruned.size_after)}{quota}.")


def _freed(plan: PrunePlan, pruned: Pruned) -> str:
    """Return what was freed now, and what a later prune frees, as sentences."""
    now, later = pruned.freed_now, (plan.freed or 0) - pruned.freed_now
    said = f"Freed {size(now)} now. " if now else "Nothing is freed yet. " if later > 0 else ""
    if later > 0:
        said += f"A later prune frees up to {size(later)}{' more' if now else ''}. "
    return said


def _counted(rule: str, count: int) -> list[Cell]:
    return [Cell("keep", "green"), Cell(plural(count, "checkpoint")), Cell(clean(rule), dim=True)]


def _row(ruling: Ruling, candidate: Candidate) -> list[Cell]:
    sign = Cell("keep", "green") if ruling.keep else Cell("remove", "red")
    return [
        sign,
        Cell(ruling.id[:SHORT_ID], "yellow"),
        Cell(clean(f"{ruling.session} #{ruling.seq}")),
        Cell(ago(candidate.time), dim=True),
        Cell(clean(candidate.kind)),
        Cell("" if ruling.bytes_freed is None else size(ruling.bytes_freed)),
        Cell(clean(f"{ruling.rule}: {ruling.reason}")),
    ]


def _check_quota(quota: int | None, used: int) -> None:
    from mulligan.errors import QuotaExceeded

    if quota is not None and used > quota:
        raise QuotaExceeded(
            f"The store has {used:,} bytes, {used - quota:,} more than its quota of {quota:,}."
        )
