"""Reading a store of which something was lost: a repair has recorded what."""

from __future__ import annotations

from mulligan import codec
from mulligan.engine import Engine
from mulligan.errors import MissingObject
from mulligan.model import Digest
from mulligan.timeline.losses import lost_objects

_NOTHING = codec.encode(b"")
"""What a lost object reads as: a value that holds nothing, and refers to nothing."""


class KnownLosses:
    """Loads objects; those that are recorded as lost read as empty."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lost: set[Digest] | None = None

    def load(self, digest: Digest) -> bytes:
        """Return an object; raises ``MissingObject`` if no repair has noted its loss."""
        try:
            return self._engine.load(digest)
        except MissingObject:
            # Not silently: without a record, a repair may still find it.
            if digest not in self._known():
                raise
            return _NOTHING

    def _known(self) -> set[Digest]:
        if self._lost is None:
            with self._engine.read() as view:
                self._lost = lost_objects(view, self._engine.load)
        return self._lost
