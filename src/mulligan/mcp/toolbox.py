"""The table of tools, with what a client is told about each."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.decoding import ready
from mulligan.errors import InvalidArguments
from mulligan.mcp import inputs, outputs
from mulligan.mcp.schemas import schema_of
from mulligan.mcp.tools import Tool, Tools

TOOLS = (
    Tool(
        "checkpoint",
        "Take a checkpoint",
        "Keep the files and the state of this session as they are now, under one id. Cheap: only "
        "what changed is stored. Take one before anything risky.",
        inputs.CheckpointInput,
        outputs.CheckpointOutput,
        Tools.checkpoint,
        read_only=False,
    ),
    Tool(
        "status",
        "Status",
        "Show the sessions of this project with their latest checkpoints, tasks and effects.",
        inputs.StatusInput,
        outputs.StatusOutput,
        Tools.status,
    ),
    Tool(
        "mark",
        "Mark a checkpoint",
        "Mark a checkpoint as good (tests pass) or bad. @good then names the latest good one.",
        inputs.MarkInput,
        outputs.CheckpointOutput,
        Tools.mark,
        read_only=False,
        idempotent=True,
    ),
    Tool(
        "read_file",
        "Read a file at a point",
        "Read a file as it was at a checkpoint or another point in time; nothing is changed.",
        inputs.ReadFileInput,
        outputs.FileOutput,
        Tools.read_file,
    ),
    Tool(
        "log",
        "Log",
        "List checkpoints, restores and forks of the session, newest first.",
        inputs.LogInput,
        outputs.LogOutput,
        Tools.log,
    ),
    Tool(
        "diff",
        "Compare points",
        "Show what differs in files and state between two points, or between a point and now.",
        inputs.DiffInput,
        outputs.DiffOutput,
        Tools.diff,
    ),
    Tool(
        "plan_restore",
        "Plan a restore",
        "Show what going back to a point would change, without changing anything. Returns the "
        "plan_id that restore takes.",
        inputs.PlanInput,
        outputs.PlanOutput,
        Tools.plan_restore,
    ),
    Tool(
        "restore",
        "Restore",
        "Apply a plan of plan_restore. What is there now is kept in a safety checkpoint first, and "
        "undo brings it back. Refused if anything changed since the plan was made.",
        inputs.RestoreInput,
        outputs.RestoredOutput,
        Tools.restore,
        read_only=False,
        destructive=True,
    ),
    Tool(
        "undo",
        "Undo the last restore",
        "Undo the last restore; call it again to go further back.",
        inputs.UndoInput,
        outputs.RestoredOutput,
        Tools.undo,
        read_only=False,
        destructive=True,
    ),
    Tool(
        "fork",
        "Fork",
        "Make a new session that continues from a point, with its files in a directory of its own "
        "if one is named. The present session and its files are left alone.",
        inputs.ForkInput,
        outputs.ForkOutput,
        Tools.fork,
        read_only=False,
    ),
    Tool(
        "tasks",
        "Tasks",
        "List the tasks of the session with their status.",
        inputs.TasksInput,
        outputs.TasksOutput,
        Tools.tasks,
    ),
    Tool(
        "effects",
        "Effects",
        "List acts on the outside world: what was done, what waits for approval, what is in doubt.",
        inputs.EffectsInput,
        outputs.EffectsOutput,
        Tools.effects,
    ),
    Tool(
        "search_history",
        "Search the history",
        "Find a text in messages, tool calls, notes and other events of the session, or the "
        "checkpoints that changed a path.",
        inputs.SearchInput,
        outputs.SearchOutput,
        Tools.search_history,
    ),
)

BY_NAME = {tool.name: tool for tool in TOOLS}


def listing() -> list[dict[str, Any]]:
    """Return the tools as ``tools/list`` shows them."""
    return [_definition(tool) for tool in TOOLS]


def arguments_of(tool: Tool, given: Any) -> msgspec.Struct:
    """Return the checked arguments of a call, or raise ``InvalidArguments``."""
    try:
        return msgspec.convert({} if given is None else given, ready(tool.takes))
    except msgspec.ValidationError as error:
        names = ", ".join(tool.takes.__struct_fields__)
        raise InvalidArguments(
            f"{tool.name} cannot be called so: {error}.",
            hint=f"Nothing was done. It takes: {names}.",
        ) from error


def _definition(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.about,
        "inputSchema": schema_of(tool.takes),
        "outputSchema": schema_of(tool.returns),
        "annotations": {
            "title": tool.title,
            "readOnlyHint": tool.read_only,
            "destructiveHint": tool.destructive,
            "idempotentHint": tool.read_only or tool.idempotent,
            "openWorldHint": False,
        },
    }
