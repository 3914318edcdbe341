"""Where the bytes of a store are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.upkeep import Usage


def usage_view(usage: Usage) -> dict[str, Any]:
    """Return where the bytes of a store are, and what the next prune would free."""
    return {
        "total_bytes": usage.total,
        "kinds": {
            "files": usage.files,
            "state": usage.state,
            "copies": usage.copies,
            "journal": usage.journal,
            "garbage": usage.garbage,
            "other": usage.other,
        },
        "sessions": [
            {
                "session": one.session,
                "files_bytes": one.files,
                "state_bytes": one.state,
                "events": one.events,
            }
            for one in usage.sessions
        ],
        "shared": {"files_bytes": usage.shared_files, "state_bytes": usage.shared_state},
        "largest_paths": [{"path": one.path, "bytes": one.bytes} for one in usage.paths],
        "next_prune": {
            "checkpoints": usage.prunable_count,
            "checkpoint_bytes": usage.prunable,
            "garbage_bytes": usage.garbage,
        },
    }
