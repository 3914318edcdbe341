"""The search for the first bad checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.views.checkpoints import checkpoint_view, verdicts
from mulligan.views.files import file_change_views

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.recovery.bisect import Bisected, Trial
    from mulligan.session import Session


def bisect_view(session: Session, found: Bisected) -> dict[str, Any]:
    """Return what a search found, every run of it, and the files that differ."""
    marks = verdicts(session)

    def view(checkpoint: Checkpoint) -> dict[str, Any]:
        return checkpoint_view(checkpoint, marks.get(checkpoint.id))

    return {
        "session": session.name,
        "first_bad": found.culprit and view(found.culprit),
        "last_good": view(found.last_good),
        "suspects": [view(suspect) for suspect in found.suspects],
        "runs": [trial_view(trial) for trial in found.trials],
        "files": file_change_views(session.diff(found.last_good, found.suspects[-1]).files),
    }


def trial_view(trial: Trial) -> dict[str, Any]:
    """Return one run of the command."""
    return {
        "checkpoint_id": trial.checkpoint.id,
        "seq": trial.checkpoint.seq,
        "verdict": trial.verdict,
        "exit_status": trial.exit_status,
        "seconds": trial.seconds,
    }
