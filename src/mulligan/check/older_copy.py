"""Signs that a journal is an older copy of the one that the packs belong to."""

from __future__ import annotations

from mulligan import codec
from mulligan.engine import Engine
from mulligan.errors import DamagedJournal
from mulligan.objects.protocol import Objects
from mulligan.workspace.capture.patch import PATCH

_DOCUMENT = {"state", "undo", "redo"}
"""What every keyframe has; see ``mulligan.document.fold``."""

_HINT = (
    "Nothing was removed: the packs may hold what a newer journal refers to. `mulligan verify` "
    "says more. Put the newest journal/ back"
)


def unknown_checkpoints(objects: Objects, area: int, length: int) -> int:
    """Return how many checkpoints an area has past its acknowledged length.

    A crash leaves at most what one transaction was about to commit: one state and one change of
    files. More of either was committed once, by a newer journal than this one.
    """
    states, changes = 0, 0
    for data in objects.values_after(area, length):
        value = codec.decode(data)
        states += isinstance(value, dict) and value.keys() >= _DOCUMENT
        changes += isinstance(value, list) and value[:1] == [PATCH]
    return max(states, changes)


def refuse_older_copy(engine: Engine) -> None:
    """Raise ``DamagedJournal`` if the journal is, or seems to be, an older copy.

    What it does not know would look like garbage.
    """
    if lost := engine.journal.lost_commits():
        raise DamagedJournal(
            f"The journal is an older copy: it lacks the last {lost} acknowledged commits.",
            hint=f"{_HINT}, or delete journal/clean to accept the loss.",
        )
    objects = engine.objects
    for area in objects.areas():
        with objects.own(area) as owned:
            if owned is None:
                continue  # its writer has not committed yet
            with engine.read() as view:
                length, forgotten = view.area_length(area), view.last_forgotten_area()
            if objects.area_size(area) <= length or (not length and area <= forgotten):
                continue
            if not _is_newer(engine, area) or objects.is_foreign(area):
                continue
            if unknown_checkpoints(objects, area, length) > 1:
                raise DamagedJournal(
                    f"The journal seems to be an older copy: {objects.area_name(area)} holds "
                    "checkpoints that it does not know.",
                    hint=f"{_HINT}. Otherwise, upkeep continues once something newer is written.",
                )


def _is_newer(engine: Engine, area: int) -> bool:
    """Whether an area was written to after the newest event.

    If not, work went on with this journal: then the newer one cannot be put back any more.
    """
    with engine.read() as view:
        times = [view.head(record.number).time for record in view.sessions()]
    return not times or engine.objects.written_at(area) > max(times)
