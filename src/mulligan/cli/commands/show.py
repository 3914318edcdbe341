"""mulligan show."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.files import left_out_lines
from mulligan.cli.render.pending import warn_of_pending
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    echo_columns,
    fields,
    local,
    plural,
    print_json,
    short,
    size,
)
from mulligan.views.effects import effect_plan_view

MAX_SHOWN_PATHS = 8


@click.command("show", cls=Command, epilog=example("mulligan show", "mulligan show tests-green"))
@click.argument("point", default="@latest")
@click.pass_obj
def command(call: CliContext, point: str) -> None:
    """Show the checkpoint at POINT, or the one before it; the latest, if none is given.

    It shows how many files the checkpoint holds, and which rules left files out; --json lists all
    paths.
    """
    session = call.open_to_look()
    record = session.internal.record(point)
    has_acts = session.internal.has_acts
    plan = session.effects.plan(point) if has_acts else None
    record["effects"] = effect_plan_view(plan) if plan else None
    record["lost"] = list(session.internal.lost_parts(record["checkpoint_id"]))
    warn_of_pending(session)
    if call.json:
        print_json(record)
    elif call.quiet:
        click.echo(record["checkpoint_id"])
    else:
        _print(record)


def _print(record: dict[str, Any]) -> None:
    click.echo(Cell(f"checkpoint {record['checkpoint_id']}", "yellow").styled())
    memory, environment = record["system_state"]["shared_memory"], record["environment"]
    time = datetime.fromisoformat(record["timestamp"])
    fields(
        [
            ("session", f"{record['session']} #{record['seq']}"),
            ("time", f"{local(time)} ({ago(time)})"),
            ("kind", record["kind"]),
            ("label", _label(record)),
            ("note", record["note"] or ""),
            ("data", short(record["data"]) if record["data"] else ""),
            ("by", record["actor"]),
            ("verdict", _verdict(record)),
            ("parent", record["parent"] or "none"),
            ("state", memory["snapshot"]),
            ("changed", _some(memory["keys_modified"])),
            ("machine", f"{environment['host']}, {environment['platform']}"),
            ("tools", _tools(record)),
            ("git head", environment["git_head"] or ""),
            ("files", _files(record["coverage"])),
            ("lost", "; ".join(record["lost"])),
            ("outside", _outside(record["effects"])),
            ("cost", f"{record['cost']['ms']:.1f} ms, {size(record['cost']['bytes'])}"),
        ]
    )
    _print_left_out(record["coverage"])
    _print_purged(record["purged"])
    _print_changing(record["coverage"])
    _print_agents(record["system_state"]["agents"])


def _outside(effects: dict[str, Any] | None) -> str:
    """Return what a restore of the checkpoint would mean for effects after it."""
    if effects is None:
        return ""
    words = {"compensated": "to undo", "left_behind": "to leave behind", "repeatable": "idempotent"}
    said = [f"{len(effects[key])} {word}" for key, word in words.items() if effects[key]]
    return f"effects after it: {', '.join(said)}"


def _label(record: dict[str, Any]) -> str:
    """Return the label that the checkpoint got, and whether it still has it."""
    label, now = record["label"], record["label_at"]
    if label is None or now == record["checkpoint_id"]:
        return label or ""
    return f"{label} (dropped)" if now is None else f"{label} (now names {now[:SHORT_ID]})"


def _verdict(record: dict[str, Any]) -> str:
    if record["verdict"] is None:
        return ""
    note = f": {record['mark']['note']}" if record["mark"]["note"] else ""
    return f"{record['verdict']}, by {record['mark']['by']}{note}"


def _files(coverage: dict[str, Any] | None) -> str:
    if coverage is None:
        return "none: this checkpoint holds the state alone"
    held = f" of {size(coverage['bytes'])}" if coverage["bytes"] else ""
    directories = plural(coverage["directories"], "directory", "directories")
    return f"{plural(coverage['files'], 'file')}{held} in {directories}"


def _print_left_out(coverage: dict[str, Any] | None) -> None:
    from mulligan.model import LeftOut

    lines = left_out_lines(LeftOut(**left) for left in (coverage or {}).get("left_out", ()))
    if lines:
        click.echo("left out")
        for line in lines:
            click.echo(f"  {line}")


def _print_purged(purged: list[dict[str, str]]) -> None:
    if purged:
        click.echo("purged")
        for file in purged:
            click.echo(f"  {clean(file['path'])}  {clean(file['rule'])}")


def _print_changing(coverage: dict[str, Any] | None) -> None:
    found = (coverage or {}).get("changing", ())
    if found:
        click.echo("changing")
        for path in found:
            click.echo(f"  {clean(path['path'])}  {clean(path['reason'])}")


def _some(paths: list[str]) -> str:
    more = f" … and {len(paths) - MAX_SHOWN_PATHS} more" if len(paths) > MAX_SHOWN_PATHS else ""
    return (", ".join(paths[:MAX_SHOWN_PATHS]) or "nothing") + more


def _tools(record: dict[str, Any]) -> str:
    tools = {"python": record["environment"]["python"]}
    tools |= record["recovery_instructions"]["required_tools"]
    return ", ".join(f"{name} {version}" for name, version in tools.items())


def _print_agents(agents: dict[str, Any]) -> None:
    if agents:
        click.echo("agents")
        echo_columns([_agent_row(name, agent) for name, agent in agents.items()])


def _agent_row(name: str, agent: dict[str, Any]) -> list[Cell]:
    process = f"pid {agent['process_id']}" if agent["process_id"] is not None else ""
    return [
        Cell(f"  {clean(name)}", bold=True),
        Cell(process, dim=True),
        Cell(_said(agent["state"]), "green"),
        Cell(_said(agent["working_on"])),
    ]


def _said(value: Any) -> str:
    if value is None:
        return ""
    return clean(value) if isinstance(value, str) else short(value)
