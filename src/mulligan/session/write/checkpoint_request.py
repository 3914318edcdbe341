"""What is asked of a checkpoint; apart from taking it, which imports all of workspace/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan import codec
from mulligan.document.values import freeze
from mulligan.errors import UnstorableValue
from mulligan.session.arguments import text
from mulligan.session.names import check_key, check_name

MAX_DATA = 64 << 10
"""How many bytes the data of a checkpoint may have, encoded."""


class CheckpointRequest(msgspec.Struct, frozen=True):
    """A checkpoint to be taken; ``data`` is a frozen dictionary.

    With ``if_files_changed``, it is taken only if the latest one holds other files.
    """

    kind: str
    note: str | None = None
    label: str | None = None
    safety: bool = False
    key: str | None = None
    data: Any = None
    if_files_changed: bool = False


def checked_request(kind: Any, note: Any, label: Any, key: Any, data: Any) -> CheckpointRequest:
    """Return a request of the user, or raise before anything is captured."""
    check_name(kind, "checkpoint kind")
    if label is not None:
        check_name(label, "label")
    if key is not None:
        check_key(key)
    if note is not None:
        note = freeze(text(note, "A note", UnstorableValue), ("note",))
    return CheckpointRequest(kind, note, label, key=key, data=_checked_data(data))


def _checked_data(data: Any) -> Any:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise UnstorableValue(
            f"The data of a checkpoint is a dictionary, not {type(data).__name__}.",
            hint='Nothing was written. Write data={"step": 7}, for example.',
        )
    frozen = freeze(dict(data), ("data",))
    size = len(codec.encode(frozen))
    if size > MAX_DATA:
        raise UnstorableValue(
            f"The data of a checkpoint has {size} bytes; {MAX_DATA} are allowed.",
            hint="Nothing was written. Put large values into the state, which is part of the "
            "checkpoint.",
        )
    return frozen or None
