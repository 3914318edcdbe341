"""How far a capture is: told by files and by bytes, never by the clock."""

from __future__ import annotations

from mulligan.model import ObjectKind
from mulligan.objects.memory import MemoryObjects
from mulligan.workspace.capture.progress import (
    PROGRESS_EVERY_BYTES,
    PROGRESS_EVERY_FILES,
    CountingSink,
)


def test_many_small_files_and_one_large_one_are_both_told() -> None:
    told: list[tuple[int, int]] = []
    sink = CountingSink(MemoryObjects().bundle(), lambda files, count: told.append((files, count)))
    for _ in range(PROGRESS_EVERY_FILES):
        sink.begin_file()
        sink.put(ObjectKind.CHUNK, b"x")
    assert told == [(PROGRESS_EVERY_FILES, PROGRESS_EVERY_FILES - 1)]
    sink.begin_file()
    for number in range(16):
        sink.put(ObjectKind.CHUNK, bytes([number]) * (PROGRESS_EVERY_BYTES // 8))
    first, second = told[1:]
    assert first == (PROGRESS_EVERY_FILES + 1, PROGRESS_EVERY_FILES + PROGRESS_EVERY_BYTES)
    assert second == (first[0], first[1] + PROGRESS_EVERY_BYTES)
