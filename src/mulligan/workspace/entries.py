"""Entries of a tree: files, symlinks and directories as frozen values.

A tree is a document (see ``mulligan.state``): a directory is a dict from names to entries, with its
own attributes under the empty name; a file or a symlink is a list. So trees share everything
that did not change, however large a directory is. See ``mulligan.workspace.capture.patch``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.model import Digest

TreePath = tuple[str, ...]
"""A path in a tree: names as ``to_name`` makes them."""

SELF = ""
"""The name under which a directory keeps its own attributes; no file can have it."""

FILE = "f"
LINK = "l"
DIRECTORY = "d"


class File(msgspec.Struct, frozen=True):
    """A regular file: its permission bits, mtime in nanoseconds, and the objects of its bytes."""

    mode: int
    mtime: int
    size: int
    chunks: tuple[Digest, ...]
    xattrs: dict[str, bytes] | None = None


class Link(msgspec.Struct, frozen=True):
    """A symbolic link: where it points, never followed."""

    mtime: int
    target: bytes


class Directory(msgspec.Struct, frozen=True):
    """A directory's own attributes."""

    mode: int
    mtime: int
    xattrs: dict[str, bytes] | None = None


Leaf = File | Link
"""What a path can lead to apart from a directory."""


def to_name(raw: bytes) -> str:
    """Return a file name as a key: UTF-8 text, or NUL and Latin-1 where it is not."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "\x00" + raw.decode("latin-1")


def from_name(name: str) -> bytes:
    """Return the file name that :func:`to_name` made a key of."""
    return name[1:].encode("latin-1") if name.startswith("\x00") else name.encode()


def shown(path: tuple[str, ...]) -> str:
    """Return a path for people, with what is not text escaped."""
    return b"/".join(map(from_name, path)).decode("utf-8", "backslashreplace")


def encode_entry(entry: Leaf | Directory) -> list[Any]:
    """Return an entry as the frozen value that a tree holds."""
    if isinstance(entry, Link):
        return [LINK, entry.mtime, entry.target]
    if isinstance(entry, Directory):
        return [DIRECTORY, entry.mode, entry.mtime, *_extra(entry.xattrs)]
    chunks: Any = entry.chunks[0] if len(entry.chunks) == 1 else b"".join(entry.chunks)
    return [FILE, entry.mode, entry.mtime, entry.size, chunks, *_extra(entry.xattrs)]


def decode_entry(value: list[Any]) -> Leaf | Directory:
    """Return the entry of a frozen value."""
    kind, *fields = value
    if kind == FILE:
        mode, mtime, size, chunks, *extra = fields
        return File(mode, mtime, size, split_chunks(chunks), extra[0] if extra else None)
    if kind == LINK:
        return Link(*fields)
    return Directory(*fields)


def _extra(xattrs: dict[str, bytes] | None) -> list[dict[str, bytes]]:
    return [xattrs] if xattrs else []


def split_chunks(chunks: Any) -> tuple[Digest, ...]:
    """Return the digests that stand one after the other in a file's entry."""
    if not isinstance(chunks, bytes):
        return ()  # so many that they are an object of their own
    return tuple(Digest(chunks[i : i + 32]) for i in range(0, len(chunks), 32))
