"""What is asked of a checkpoint; apart from taking it, which imports all of workspace/."""

from __future__ import annotations

import msgspec


class CheckpointRequest(msgspec.Struct, frozen=True):
    """A checkpoint to be taken."""

    kind: str
    note: str | None = None
    label: str | None = None
    safety: bool = False
    key: str | None = None
