"""Effects on the outside world, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mulligan.cli.render.text import Cell, ago, clean, plural, short

if TYPE_CHECKING:
    from mulligan.model import Effect, EffectPlan

SIGNS = {
    "intended": ("▶", "cyan"),
    "approved": ("▶", "cyan"),
    "denied": ("-", "yellow"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "in_doubt": ("?", "yellow"),
    "compensated": ("↶", None),
    "left_behind": ("!", "yellow"),
}

SHORT_ID = 8
INTENT_WIDTH = 60


def effect_row(effect: Effect) -> list[Cell]:
    """Return an effect as a line of a table."""
    sign, colour = SIGNS.get(effect.status, ("?", None))
    status = "waits for approval" if effect.is_pending else effect.status.replace("_", " ")
    owner = f"{effect.agent}, {effect.task}" if effect.task else effect.agent
    return [
        Cell(f"{sign} {effect.id[:SHORT_ID]}", colour),
        Cell(clean(effect.name), bold=True),
        Cell(status, colour),
        Cell(effect.kind, dim=True),
        Cell(clean(owner)),
        Cell(ago(effect.at) if effect.at else "", dim=True),
        Cell(_told(effect), dim=True),
    ]


def _told(effect: Effect) -> str:
    if effect.status in ("failed", "in_doubt") and effect.error:
        return clean(effect.error)
    if effect.status == "denied" and effect.question is not None:
        note = f": {effect.question.note}" if effect.question.note else ""
        return clean(f"by {effect.question.by or 'timeout'}{note}")
    return clean(short(effect.intent)) if effect.intent is not None else ""


def effect_plan_lines(plan: EffectPlan) -> list[str]:
    """Return what going back to a point means for the effects after it."""
    lines = []
    if plan.compensated:
        lines.append(f"{plural(len(plan.compensated), 'effect')} to undo, in this order:")
        lines += [_line(effect, _how(effect)) for effect in plan.compensated]
    if plan.left_behind:
        words = f"Warning: {plural(len(plan.left_behind), 'effect')} cannot be undone:"
        lines.append(Cell(words, "yellow").styled())
        lines += [_line(effect, effect.status.replace("_", " ")) for effect in plan.left_behind]
    if plan.repeatable:
        lines.append(f"{plural(len(plan.repeatable), 'effect')} may happen again:")
        lines += [_line(effect, "idempotent") for effect in plan.repeatable]
    return lines


def print_effect_plan(plan: EffectPlan) -> None:
    """Print what going back to a point means for the effects after it."""
    for line in effect_plan_lines(plan):
        click.echo(line)


def refuse_left_behind(plan: EffectPlan | None) -> None:
    """Raise ``LeftBehind`` before the user is asked, not after the answer."""
    from mulligan.errors import LeftBehind

    if plan is not None and plan.left_behind:
        count = plural(len(plan.left_behind), "effect")
        names = ", ".join(f"{e.name} ({e.id[:SHORT_ID]})" for e in plan.left_behind[:5])
        raise LeftBehind(clean(f"{count} after the point cannot be undone: {names}."))


def open_effect_lines(effects: Sequence[Effect], limit: int) -> list[str]:
    """Return the effects of an interrupted session that need a look."""
    lines = []
    for effect in effects[:limit]:
        what = clean(f"effect {effect.id[:SHORT_ID]} of {effect.agent}: {effect.name}")
        if effect.is_pending:
            lines.append(f"Waits for approval: {what}.")
        else:
            said = f"In doubt: {what}; it may have happened and is not done again."
            lines.append(Cell(said, "yellow").styled())
    return lines


def _line(effect: Effect, said: str) -> str:
    intent = "" if effect.intent is None else f"  {short(effect.intent)}"
    return clean(f"  {effect.id[:SHORT_ID]}  {effect.name}  {said}{intent}")


def _how(effect: Effect) -> str:
    return f"by {effect.undo!r}" if isinstance(effect.undo, list) else "by its program"
