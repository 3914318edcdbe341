"""Entries of a tree: files, symlinks and directories as frozen values.

A tree is a document (see ``mulligan.document``). A directory is a dict from names to entries, with
its own attributes under the empty name; a file or a symlink is a list. Trees therefore share
everything that did not change, however large a directory is. See
``mulligan.workspace.capture.patch``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan import codec
from mulligan.codec import Ref
from mulligan.document.document import LoadBytes
from mulligan.model import Digest

TreePath = tuple[str, ...]
"""A path in a tree: names in the form that ``to_name`` returns."""

SELF = ""
"""The key of a directory's own attributes; no file can have this name."""

FILE = "f"
LINK = "l"
DIRECTORY = "d"


class File(msgspec.Struct, frozen=True):
    """A regular file: permission bits, mtime in nanoseconds, and the objects of its bytes."""

    mode: int
    mtime: int
    size: int
    chunks: tuple[Digest, ...]
    xattrs: dict[str, bytes] | None = None


class Link(msgspec.Struct, frozen=True):
    """A symbolic link and its target, which is never followed."""

    mtime: int
    target: bytes


class Directory(msgspec.Struct, frozen=True):
    """A directory's own attributes."""

    mode: int
    mtime: int
    xattrs: dict[str, bytes] | None = None


Leaf = File | Link
"""What a path can name apart from a directory."""


def to_name(raw: bytes) -> str:
    """Return a file name as a key: UTF-8 text, or NUL plus Latin-1 if it is not valid UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "\x00" + raw.decode("latin-1")


def from_name(name: str) -> bytes:
    """Return the file name for a key made by :func:`to_name`."""
    return name[1:].encode("latin-1") if name.startswith("\x00") else name.encode()


def shown(path: tuple[str, ...]) -> str:
    """Return a path for display, with bytes that are not text escaped."""
    return b"/".join(map(from_name, path)).decode("utf-8", "backslashreplace")


def encode_entry(entry: Leaf | Directory) -> list[Any]:
    """Return an entry as the frozen value that a tree stores."""
    if isinstance(entry, Link):
        return [LINK, entry.mtime, entry.target]
    if isinstance(entry, Directory):
        return [DIRECTORY, entry.mode, entry.mtime, *_extra(entry.xattrs)]
    # One string of digests instead of a list: shorter, and decoded without a loop.
    chunks: Any = entry.chunks[0] if len(entry.chunks) == 1 else b"".join(entry.chunks)
    return [FILE, entry.mode, entry.mtime, entry.size, chunks, *_extra(entry.xattrs)]


def decode_entry(value: list[Any]) -> Leaf | Directory:
    """Return the entry for a frozen value."""
    kind, *fields = value
    if kind == FILE:
        mode, mtime, size, chunks, *extra = fields
        return File(mode, mtime, size, split_chunks(chunks), extra[0] if extra else None)
    if kind == LINK:
        return Link(*fields)
    return Directory(*fields)


def _extra(xattrs: dict[str, bytes] | None) -> list[dict[str, bytes]]:
    # Left out where there are none, so that almost all entries stay short and plain.
    return [xattrs] if xattrs else []


def file_chunks(load: LoadBytes, chunks: Any) -> tuple[Digest, ...]:
    """Return the chunks of a file's entry; a long list of them is an object of its own."""
    return split_chunks(codec.decode(load(chunks.digest)) if isinstance(chunks, Ref) else chunks)


def split_chunks(chunks: Any) -> tuple[Digest, ...]:
    """Return the digests that are concatenated in a file's entry."""
    if not isinstance(chunks, bytes):
        return ()  # a list this long is stored as a separate object
    return tuple(Digest(chunks[i : i + 32]) for i in range(0, len(chunks), 32))
