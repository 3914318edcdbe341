"""Purges: what one finds and removes, and what it proved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Purge
    from mulligan.upkeep import Purged, PurgePlan


def purge_view(plan: PurgePlan, purged: Purged | None) -> dict[str, Any]:
    """Return what a purge found; ``purged`` is what was done, if it was."""
    return {
        "dry_run": purged is None,
        "files": [
            {
                "session": file.session,
                "path": file.path,
                "trees": file.trees,
                "first_seq": file.first,
                "last_seq": file.last,
                "is_present": file.is_present,
            }
            for file in plan.files
        ],
        "events": [
            {
                "session": event.session,
                "seq": event.seq,
                "kind": event.kind,
                "where": list(event.where),
                "hints": list(event.hints),
            }
            for event in plan.events
        ],
        "values": plan.values,
        "chunks": plan.chunks,
        "shared": [{"path": one.path, "other": one.other} for one in plan.shared],
        "purges": [purge_record_view(one) for one in purged.purges] if purged else [],
        "proof": purged
        and {
            "is_proved": purged.is_proved,
            "files": purged.proof.files,
            "bytes": purged.proof.bytes,
            "left": list(purged.proof.left),
            "unfinished": list(purged.unfinished),
        },
        "longest_hold_ms": purged and round(purged.longest_hold * 1000, 3),
    }


def purge_record_view(purge: Purge) -> dict[str, Any]:
    """Return the record of a purge."""
    return {
        "number": purge.number,
        "timestamp": purge.time,
        "by": purge.by,
        "reason": purge.reason,
        "finished": purge.finished,
    }
