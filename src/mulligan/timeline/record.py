"""The checkpoint record: one document with what a checkpoint holds and how to recover it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.timeline.diff import Diff
    from mulligan.timeline.marks import Mark

AGENT_FIELDS = ("process_id", "current_prompt", "state", "last_action", "working_on")
"""The fields of an agent in the record; null where the state has none."""

RESTORE_ORDER = ("shared_state", "workspace", "orchestrator", "agents")
"""The order in which the parts of a session are restored."""


def checkpoint_record(
    checkpoint: Checkpoint,
    state: Mapping[str, Any],
    *,
    digest: str,
    changed: Iterable[str],
    sessions: Iterable[str],
    mark: Mark | None = None,
    label_at: str | None = None,
    purged: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a checkpoint together with its agents and orchestrator from the state.

    ``digest`` is that of the state, ``changed`` the paths that differ from the parent checkpoint,
    ``sessions`` the names of the store's sessions at that time, ``mark`` its verdict, ``label_at``
    the id of the checkpoint that its label names now, ``purged`` the paths of files whose content
    was removed from all history, with when, by whom and why.
    """
    return {
        "checkpoint_id": checkpoint.id,
        "timestamp": checkpoint.time.isoformat(),
        "kind": checkpoint.kind,
        "session": checkpoint.session,
        "seq": checkpoint.seq,
        "parent": checkpoint.parent,
        "label": checkpoint.label,
        "label_at": label_at,
        "key": checkpoint.key,
        "note": checkpoint.note,
        "data": checkpoint.data,
        "actor": checkpoint.actor,
        "verdict": mark and mark.verdict,
        "mark": mark and {"by": mark.by, "note": mark.note},
        "system_state": {
            "orchestrator": _orchestrator(state, sessions),
            "agents": _agents(state),
            "shared_memory": {"snapshot": digest, "keys_modified": list(changed)},
        },
        "recovery_instructions": {
            "restore_order": list(RESTORE_ORDER),
            "required_tools": dict(checkpoint.environment.tools),
            "environment_vars": dict(checkpoint.environment.variables),
        },
        "environment": msgspec.to_builtins(checkpoint.environment),
        "keyframe": checkpoint.keyframe and checkpoint.keyframe.hex(),
        "format": checkpoint.format,
        "schema": checkpoint.schema,
        "cost": msgspec.to_builtins(checkpoint.cost),
        "workspace": checkpoint.workspace and checkpoint.workspace.hex(),
        "coverage": checkpoint.coverage and msgspec.to_builtins(checkpoint.coverage),
        "purged": [{"path": path, "rule": rule} for path, rule in sorted((purged or {}).items())],
    }


def changed_paths(diff: Diff) -> list[str]:
    """Return the paths of a diff, sorted."""
    return sorted(difference.place for difference in (*diff.state, *diff.conversation))


def _orchestrator(state: Mapping[str, Any], sessions: Iterable[str]) -> dict[str, Any]:
    known = _mapping(state.get("orchestrator"))
    return {
        "active_sessions": known.get("active_sessions", list(sessions)),
        "configuration": state.get("config", known.get("configuration", {})),
    }


def _agents(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {field: _mapping(agent).get(field) for field in AGENT_FIELDS}
        for name, agent in _mapping(state.get("agents")).items()
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a dict; a user may have stored anything there."""
    return value if isinstance(value, dict) else {}
