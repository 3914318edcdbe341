"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from mulligan.config.values import MAX_BYTES, duration, duration_text, size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("500ms", 0.5),
        (1.5, 1.5),
        ("1.5s", 1.5),
        ("36500d", 36_500 * 86_400),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "m", "-1s", "0s", 0, -1, True, None, "1h30m", float("inf"), float("nan"), [1]),
        *("36501d", "99999999999d", 1e300),  # there may be no date that long ago
    ],
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7 * 86400, "7d"),
        (36 * 3600, "36h"),
        (90 * 60, "90m"),
        (90, "90s"),
        (0.5, "0.5s"),
        (86400.5, "86400.5s"),
    ],
)
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10GB", 10**10),
        ("10 GB", 10**10),
        ("1.5TB", 15 * 10**11),
        ("1GiB", 1 << 30),
        ("512B", 512),
        ("1KB", 1000),
        (4096, 4096),
        ("4194304TiB", MAX_BYTES),
    ],
)
def test_sizes(text: object, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    "text", ["", "10", "GB", "-1GB", "0B", 0, -1, True, None, 1.5, "10gb", "10 G", MAX_BYTES + 1]
)
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        size(text)
