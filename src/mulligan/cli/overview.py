"""What ``mulligan --help`` prints, as data: printing it imports neither click nor any command."""

from __future__ import annotations

import os
import sys

from mulligan.cli.render.streams import open_streams, terminal_columns, warn_of_lost_output

TYPE_CHECKING = False  # ``typing`` is slow to import

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = "Checkpoint and recovery for long-running AI agents, on one durable timeline."

OPTIONS = {
    "--store PATH": "Use the store in this directory.",
    "-s, --session NAME": "Use this session.",
    "--json": "Print JSON; `mulligan help json`.",
    "-q, --quiet": "Print only ids, names and values.",
    "--version": "Show the version and exit.",
    "-h, --help": "Show this message and exit.",
}
"""Every option of the program itself, as click shows it."""

COMMANDS = {
    "init": "Make a store for a project.",
    "run": "Run an agent and keep it alive and recoverable.",
    "up": "Run a team of agents from a workflow file.",
    "resume": "Continue an interrupted or paused session.",
    "pause": "Stop the agents of a session at a safe point.",
    "watch": "Take a checkpoint whenever files have changed.",
    "checkpoint": "Take a checkpoint now and print its id.",
    "log": "List checkpoints, restores and forks, newest first.",
    "show": "Show one checkpoint.",
    "events": "List the events of a session, or follow them live.",
    "status": "Show the store and its sessions.",
    "diff": "Show what differs between two points.",
    "restore": "Restore state and files of a point; nothing is lost.",
    "undo": "Undo the last restore.",
    "redo": "Reverse the last undo.",
    "rewind": "Take a coding agent back to an earlier prompt.",
    "mark": "Mark a checkpoint as good or bad.",
    "label": "List the labels of checkpoints, or drop one.",
    "pin": "Keep a checkpoint for good, or no longer.",
    "bisect": "Find the first bad checkpoint by running a command.",
    "fork": "Make a new session that continues from a point.",
    "tasks": "List the tasks, or change them from scripts.",
    "mail": "List messages between agents, send and receive.",
    "effects": "List effects on the outside world, or settle one.",
    "approve": "Approve an effect that waits.",
    "deny": "Deny an effect that waits.",
    "tools": "List the calls of tools, or settle one.",
    "exec": "Run a command between two checkpoints, and record it.",
    "mcp": "Serve agents over MCP on standard input and output.",
    "drift": "Show whether agents loop, stall or otherwise go wrong.",
    "state": "Read and write the state from scripts.",
    "install": "Record a coding agent: add hooks to its settings.",
    "uninstall": "Remove these hooks from its settings.",
    "doctor": "Check that hooks are installed and work.",
    "hook": "Record an event of a coding agent; its hooks call this.",
    "prune": "Remove the checkpoints that need not be kept.",
    "delete": "Delete a session, or some of its checkpoints.",
    "purge": "Remove a secret from all history, and prove it.",
    "du": "Show where the bytes of the store are.",
    "verify": "Check the store: its structure, or every byte.",
    "drill": "Try out whether a point can be restored.",
    "stores": "List all stores with their projects.",
    "move-store": "Move the store out of its project, or into it.",
    "demo": "See the whole story, with real processes and a real kill -9.",
    "help": "Show the help of a command, or a guide.",
}
"""Every command with its short help."""

POINTS = """\
A POINT is a checkpoint's id or the beginning of one, a label, @latest,
@latest~2, @good, @bad, '#SEQ', or a time: 2026-11-15T10:00, 11:26,
'36 minutes ago', '10m ago'.
SESSION:POINT is one of another session."""

EXAMPLE = """\
Example:
  mulligan init
  mulligan checkpoint -m 'before the refactoring'
  mulligan restore @latest"""

WIDTH = 80
"""From this width on, no line of the text is wrapped."""

REQUESTS: tuple[list[str], ...] = ([], ["-h"], ["--help"])


def is_wanted(args: Sequence[str]) -> bool:
    """Whether a command line asks for this text; a narrow terminal needs click to wrap it."""
    is_plain = list(args) in REQUESTS and "_MULLIGAN_COMPLETE" not in os.environ
    return is_plain and terminal_columns() >= WIDTH


def show() -> None:
    """Print the text."""
    open_streams()
    sys.stdout.write(text())
    sys.stdout.flush()
    warn_of_lost_output()


def text() -> str:
    """Return the text, line by line as click formats it for a terminal of the usual width."""
    return "\n".join(
        (
            "Usage: mulligan [OPTIONS] [COMMAND] [ARGS]...\n",
            f"  {ABOUT}\n",
            _section("Options", OPTIONS),
            _section("Commands", COMMANDS),
            _indented(POINTS),
            _indented(EXAMPLE),
        )
    )


def _section(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return f"{title}:\n" + _indented("\n".join(f"{k:{width}}  {v}" for k, v in rows.items()))


def _indented(lines: str) -> str:
    return "".join(f"  {line}\n" for line in lines.split("\n"))
