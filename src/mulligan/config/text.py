"""Reading text files that people write."""

from __future__ import annotations

from pathlib import Path


def read_text(file: Path) -> str:
    """Return the text of a file; raises ``OSError``, or ``ValueError`` if it is not UTF-8."""
    try:
        # Not the encoding of the locale. Some editors begin a file with a byte order mark.
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not encoded as UTF-8") from error
