"""The index: how every path looked when it was last captured, so that a scan reads only changes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from mulligan.model import Digest, LeftOut

VERSION = 4

GRAIN = 20_000_000
"""Nanoseconds within which a file may change twice without its times showing it."""

COARSE_GRAIN = 2_000_000_000
"""The same on filesystems that keep no parts of seconds."""


class Seen(msgspec.Struct, gc=False, array_like=True):
    """A file or symlink as last captured: what its stat said, and its entry as a tree holds it."""

    ino: int
    ctime: int
    mtime: int
    size: int
    mode: int
    entry: bytes


class SeenDirectory(msgspec.Struct, gc=False, array_like=True):
    """A directory as last captured, with the names in it.

    ``entry`` is its own entry and ``reference`` what stands for it in its parent, both as a tree
    holds them; a scan leaves them empty. Nothing in it is of a kind that the garbage collector
    looks into (a set would be), so that an index may be large at no cost to the rest.
    """

    ino: int
    ctime: int
    mtime: int
    mode: int
    leaves: dict[bytes, Seen]
    directories: dict[bytes, None]
    left_out: dict[bytes, str]
    entry: bytes = b""
    reference: bytes = b""

    def doubt(self) -> None:
        """Have the directory listed at the next look, whatever its times say.

        A name that was not to be found may be away only because a directory above was moved for
        a moment. Of that nothing shows here when it is back.
        """
        self.ctime = 0


class Index(msgspec.Struct, array_like=True):
    """All directories of a workspace by their path from its root, which is ``b""``.

    ``taken`` is the filesystem's time when the scan began: what changed within the clock's grain
    of it, or after, is read again. ``tree`` is the tree all this belongs to, ``files`` and
    ``size`` are how many and how large the files in it are, ``left_out`` is what is not in it, by
    directory.
    """

    version: int
    root: str
    rules: str
    taken: int
    tree: Digest
    directories: dict[bytes, SeenDirectory]
    files: int
    size: int
    left_out: dict[bytes, list[LeftOut]]

    @property
    def fresh_from(self) -> int:
        """From this time on a second change may have left the times as they were."""
        coarse = all(d.ctime % 1_000_000_000 == 0 for d in self.directories.values())
        return self.taken - (COARSE_GRAIN if coarse else GRAIN)


def load_index(file: Path, root: Path) -> Index | None:
    """Return the saved index of a workspace, or None if there is none that can be used."""
    try:
        found = msgspec.msgpack.decode(file.read_bytes(), type=Index)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.version == VERSION and found.root == root_text(root) else None


def root_text(root: Path) -> str:
    """Return a workspace's path as text that can be stored, whatever bytes it is made of."""
    return os.fsencode(root).decode("utf-8", "backslashreplace")


def save_index(index: Index, file: Path) -> None:
    """Save an index beside and rename it into place; it is a cache, so it need not be synced."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(msgspec.msgpack.encode(index))
    draft.replace(file)
