"""The store's directory: how it is found, created and recognised."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from mulligan.codec import FORMAT_VERSION
from mulligan.errors import (
    DiskFull,
    InvalidConfig,
    NotAStore,
    ReadOnlyStore,
    StoreNotFound,
    UnknownFormat,
)
from mulligan.failpoints import Failpoint, FailpointHook, ignore

T = TypeVar("T")

NAME = ".mulligan"
STAGING = ".mulligan.new"
"""Prefix of the names under which pointers and stores are built before they are renamed."""

FORKING = f"{STAGING}-fork-"
"""The same for the directories of forks."""

FORK_NOTES = "fork-*"
"""Names in ``tmp/`` of the notes about forks that are being created or were interrupted."""

FORMAT = "FORMAT"
CONFIG = "config.toml"
PROJECT = "PROJECT"
MOVED = "MOVED"
LOCKS = "locks"
PARTS = ("journal", "packs", LOCKS, "tmp")

PATCHES = "patches"
"""The feature of stores whose trees may be patches; see ``mulligan.workspace.capture.patch``."""

ORPHANS_HINT = (
    "Nothing was changed. Put FORMAT and journal/ back from a copy of the store, or "
    "move the directory away and create a new store."
)

FEATURES = (PATCHES,)
"""Features known to this version, which new stores get; an existing store never gains one."""


_DAMAGED_FORMAT = "Nothing was changed. If it is a store, put FORMAT back from a copy of it."


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the FORMAT file."""

    format: int
    id: str
    features: list[str] = []


class _Version(msgspec.Struct, frozen=True):
    format: int


def locate(path: Path) -> Path:
    """Return the store directory that a path refers to: itself, or ``.mulligan`` inside it."""
    if path.name == NAME or (path / FORMAT).is_file():
        return path
    return path / NAME


def read_format(directory: Path) -> Format:
    """Return the content of the FORMAT file; refuse anything this version does not know."""
    if not directory.exists():
        raise StoreNotFound(f"There is no store at {directory}.")
    _refuse_file(directory)
    file = directory / FORMAT
    if not directory.is_dir() or not file.is_file():
        raise NotAStore(f"{directory} is not a Mulligan store.")
    return parse_format(file.read_bytes(), directory)


def parse_format(data: bytes, directory: Path) -> Format:
    """Return the parsed FORMAT file, or raise ``NotAStore`` or ``UnknownFormat``."""
    try:
        version = msgspec.json.decode(data.decode(), type=_Version).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAStore(
            f"The FORMAT file of {directory} cannot be read: {error}.", hint=_DAMAGED_FORMAT
        ) from error
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"The store at {directory} has format {version}; this version knows {FORMAT_VERSION}."
        )
    try:
        found = msgspec.json.decode(data, type=Format)
    except msgspec.DecodeError as error:
        raise UnknownFormat(
            f"The FORMAT file of {directory} has unknown content: {error}."
        ) from error
    if not re.fullmatch("[0-9a-f]{32}", found.id):
        raise NotAStore(
            f"The FORMAT file of {directory} has no valid store id.", hint=_DAMAGED_FORMAT
        )
    if unknown := [feature for feature in found.features if feature not in FEATURES]:
        raise UnknownFormat(
            f"The store at {directory} uses features this version does not know: "
            f"{', '.join(unknown)}."
        )
    return found


def read_config(directory: Path, shape: type[T]) -> T:
    """Return the ``workspace`` table of the store's ``config.toml``, which may be missing."""
    file = directory / CONFIG
    if not file.exists():
        return shape()
    import tomllib

    try:
        table = tomllib.loads(file.read_text()).get("workspace", {})
        return msgspec.convert(table, shape)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidConfig(f"{file} cannot be used: {error}.") from error


def create(
    directory: Path, new_journal: Callable[[Path], bytes], failpoint: FailpointHook = ignore
) -> Format:
    """Create the store's directory, or complete one whose creation was interrupted.

    The journal is created first and holds the store's id; FORMAT is linked into place last. So if
    several processes do this at once, one wins and all agree, and a store with a FORMAT always has
    a journal.
    """
    try:
        _refuse_strangers(directory)
        for made in (directory, *(directory / part for part in PARTS)):
            made.mkdir(mode=0o700, parents=made == directory, exist_ok=True)
        write_file(directory / ".gitignore", b"*\n")
        failpoint(Failpoint.STORE_DIRECTORY_MADE)
        identity = new_journal(directory / "journal")
        # The journal must be durable before FORMAT declares the store complete.
        sync_directory(directory / "journal")
        failpoint(Failpoint.STORE_JOURNAL_MADE)
        _link_format(directory, Format(FORMAT_VERSION, identity.hex(), list(FEATURES)))
        failpoint(Failpoint.STORE_FORMAT_WRITTEN)
    except OSError as error:
        raise translation(error, directory) from error
    return read_format(directory)


def _refuse_strangers(directory: Path) -> None:
    if not directory.exists():
        return
    _refuse_file(directory)
    known = {FORMAT, CONFIG, PROJECT, MOVED, ".gitignore", ".git", *PARTS}
    if not directory.is_dir() or any(entry.name not in known for entry in directory.iterdir()):
        raise NotAStore(f"{directory} exists and is not a Mulligan store.")
    _refuse_orphans(directory)


def _refuse_file(directory: Path) -> None:
    """Refuse a file where a store or a readable pointer should be."""
    if directory.name == NAME and directory.is_file():
        raise NotAStore(
            f"{directory} is a file and not a readable pointer to a store.",
            hint="Nothing was changed. It may be damaged, or another user's. `mulligan stores` "
            "lists your stores. To start over, delete the file and run `mulligan init`.",
        )


def _refuse_orphans(directory: Path) -> None:
    """Refuse a directory with packs whose journal is gone: they belong to an earlier store.

    A store whose creation was interrupted has no packs, because those come after FORMAT.
    """
    packs, journal = directory / "packs", directory / "journal" / "data.mdb"
    if not packs.is_dir() or (journal.exists() and journal.stat().st_size):
        return
    if any(packs.iterdir()):
        raise NotAStore(
            f"{directory} holds the packs of a store whose FORMAT and journal are gone.",
            hint=ORPHANS_HINT,
        )


def _link_format(directory: Path, content: Format) -> None:
    temporary = directory / "tmp" / f"FORMAT.{os.getpid()}.{threading.get_ident()}"
    data = msgspec.json.format(msgspec.json.encode(content)) + b"\n"
    write_file(temporary, data)
    try:
        # A hard link fails if the name exists, where a rename would replace the winner's file.
        os.link(temporary, directory / FORMAT)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
    # FORMAT makes the store valid: its name, and the name of the store itself, must be durable.
    for synced in (directory, directory.parent):
        sync_directory(synced)


def write_file(file: Path, data: bytes) -> None:
    """Write a small file that only its owner can read, and sync it."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write all bytes to an open file; one write may be short when space runs out."""
    written = os.write(handle, data)
    while written < len(data):
        written += os.write(handle, memoryview(data)[written:])


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(directory: Path) -> None:
    """Remove a directory with everything in it."""
    import shutil  # slow to import, and stores are seldom removed

    shutil.rmtree(directory)


def translation(error: OSError, directory: Path) -> Exception:
    """Return the error to raise for an ``OSError`` while creating a store."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyStore(f"It is not permitted to make a store at {directory}.")
    if error.errno == errno.ENOENT:  # /proc and similar filesystems
        return ReadOnlyStore(f"Nothing can be made at {directory}, so no store either.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"There is no space left to make a store at {directory}.")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return NotAStore(f"{directory} cannot be a store: a file is in the way.")
    return error
