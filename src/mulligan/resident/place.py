"""Where the helper is: a directory of the user beside the stores, readable by that user alone."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from mulligan.errors import UnsafeHelper

DIRECTORY = "helper"
SOCKET = "socket"
LOCK = "lock"
CLIENT = "hook"


def helper_directory(state: Path) -> Path:
    """Return the helper's directory below the directory of stores."""
    return state / DIRECTORY


def make_directory(state: Path) -> Path:
    """Make the helper's directory, and check that it belongs to this user alone."""
    if not sys.platform.startswith("linux"):
        raise UnsafeHelper(
            "The helper needs Linux: only Linux says which user a client belongs to."
        )
    return own_directory(state)


def own_directory(state: Path) -> Path:
    """Make the directory on any system, and check it; locks in it need no Linux."""
    directory = helper_directory(state)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_directory(directory)
    return directory


def check_directory(directory: Path) -> None:
    """Raise ``UnsafeHelper`` unless a directory is this user's, and no other user can write it."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnsafeHelper(f"{directory} is not a directory of this user.")
    if found.st_mode & 0o077:
        directory.chmod(0o700)
