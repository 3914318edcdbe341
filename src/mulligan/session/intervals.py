"""Default intervals of an agent's loop; apart from it, because every session knows them."""

from __future__ import annotations

CHECKPOINT_INTERVAL_SECONDS = 30 * 60.0
"""Default seconds between two routine checkpoints."""

REFRESH_SECONDS = 2 * 60 * 60.0
"""Default seconds after which a process is restarted from a recovery checkpoint."""
