"""What a power cut leaves: all before the last flush, and any part of what came after."""

from __future__ import annotations

import random

import pytest

from mulligan.testing.power.cuts import BLOCK, FATES, images, survivors
from mulligan.testing.power.disk import Record, Write

BASE = bytes(8 * BLOCK)


def block(number: int, byte: int, count: int = 1) -> Write:
    return Write(number * BLOCK, bytes([byte]) * BLOCK * count)


class Chosen(random.Random):
    """A source of choices whose fates are known."""

    def __init__(self, fate: str) -> None:
        super().__init__(1)
        self._fate = fate

    def choice(self, seq):
        return self._fate if seq is FATES else super().choice(seq)


def cut(record: list[Record], position: int, fate: str) -> bytes:
    return next(images(BASE, record, [position], Chosen(fate)))[2]


@pytest.mark.parametrize("fate", FATES)
def test_what_was_flushed_survives_every_cut(fate: str) -> None:
    image = cut([block(0, 1), block(1, 2), None, block(2, 3)], 4, fate)
    assert image[: 2 * BLOCK] == bytes([1]) * BLOCK + bytes([2]) * BLOCK


def test_what_was_not_flushed_is_lost_or_kept() -> None:
    record: list[Record] = [block(0, 1), None, block(0, 2)]
    assert cut(record, 3, "lost")[0] == 1
    assert cut(record, 3, "kept")[0] == 2


def test_nothing_after_the_cut_is_on_the_disk() -> None:
    assert cut([block(0, 1), None, block(0, 2), None], 2, "kept")[0] == 1


def test_a_flush_after_the_cut_saves_nothing() -> None:
    assert cut([block(0, 1), None], 1, "lost") == BASE


def test_later_cuts_are_built_on_earlier_ones() -> None:
    record: list[Record] = [block(0, 1), None, block(1, 2), None, block(2, 3), None]
    found = [image for _, _, image in images(BASE, record, [2, 4, 6], Chosen("lost"))]
    assert [image[2 * BLOCK] for image in found] == [0, 0, 3]
    assert [image[BLOCK] for image in found] == [0, 2, 2]


def test_a_torn_write_survives_in_whole_blocks() -> None:
    write = block(0, 9, count=6)
    for seed in range(40):
        for part in survivors([write], "torn", random.Random(seed)):
            assert 0 < len(part.data) < len(write.data)
            assert len(part.data) % BLOCK == part.offset % BLOCK == 0
