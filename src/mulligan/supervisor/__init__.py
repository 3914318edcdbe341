"""The supervisor: runs a team of agents as processes, and recovers it after a crash.

``run`` is the entry point: it takes the ``lease``, recovers the session if needed, and supervises.
``workflow`` describes what to run and ``preflight`` checks that it exists. ``machine`` decides (no
I/O), ``runner`` carries it out through ``team``, ``process``, ``heartbeat``, ``health``,
``checkpoint_thread`` and ``records``. ``sink`` outlives the supervisor, ``orphans`` ends processes
that an earlier supervisor left, and ``requests`` asks a running one for a pause or a checkpoint.
``drills`` tries out a recovery with the team's commands, ``schedule`` does so beside a team.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.supervisor.drills import drill_session
    from mulligan.supervisor.requests import request_checkpoint, request_pause

__all__ = ["drill_session", "request_checkpoint", "request_pause"]

_HOMES = {
    "drill_session": "mulligan.supervisor.drills",
    "request_checkpoint": "mulligan.supervisor.requests",
    "request_pause": "mulligan.supervisor.requests",
}
"""Where the public names live; imported when first used, since their modules are large."""


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
