"""Looking for bytes in the files of a store without any code of the store."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"\x28\xb5\x2f\xfd"
MOST = 64 << 20


def files_with(directory: Path, text: bytes) -> list[str]:
    """Return the files that hold a text, as it is or in any zstd frame at any offset."""
    found = []
    for file in sorted(directory.rglob("*")):
        if file.is_file() and file.name != "lock.mdb":
            data = file.read_bytes()
            if text in data:
                found.append(f"{file.name}: raw")
            if any(text in part for part in frames(data)):
                found.append(f"{file.name}: compressed")
    return found


def frames(data: bytes) -> list[bytes]:
    """Return what can be decompressed in bytes, from every place that looks like a frame."""
    found = []
    at = data.find(MAGIC)
    while at >= 0:
        with contextlib.suppress(zstd.ZstdError):
            inner = zstd.ZstdDecompressor().decompress(data[at:], max_length=MOST)
            # Copies of events hold records that are compressed themselves.
            found += [inner, *frames(inner)]
        at = data.find(MAGIC, at + 1)
    return found
