"""The files of the demo: a small project, a command that wrecks it, and a look without Mulligan."""

from __future__ import annotations

import stat
from pathlib import Path

COMMAND = (
    "rm -rf src && echo '# TODO' > README.md && chmod -x run.sh && chmod 666 settings.toml "
    "&& mv tests/test_login.py tests/old.py && ln -sf /etc/hosts current && echo junk > junk.tmp"
)
"""The agent's attempt to clean up; each part spoils something else."""

Picture = dict[str, tuple[int, int, bytes]]
"""What is at each path: type and permission bits, mtime in nanoseconds, and content."""

_SOURCES = {
    "README.md": b"# Login\n\nUsers log in, and stay logged in until they log out.\n",
    "settings.toml": b'timezone = "UTC"\n',
    "src/login.py": b"from session import expires\n\n\nlogin = expires\n",
    "src/session.py": b"import datetime\n\n\nexpires = datetime.date.today()\n",
    "src/web/templates/login.html": "<form>…</form>\n".encode(),
    "src/logo.png": bytes(range(256)) * 64,
    "src/a name with spaces\nand two lines": b"odd, but allowed\n",
    "tests/test_login.py": b"def test_login():\n    assert True\n",
    "run.sh": b"#!/bin/sh\nexec python3 src/login.py\n",
}


def make_project(directory: Path) -> None:
    """Make a small project: text, bytes, a script, a symlink, an empty directory, odd names."""
    for name, content in _SOURCES.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (directory / "run.sh").chmod(0o755)
    (directory / "uploads").mkdir()
    (directory / "current").symlink_to("src/login.py")


def picture(directory: Path) -> Picture:
    """Return what is in a directory, apart from the store and pointers to it."""
    paths = (path.relative_to(directory) for path in directory.rglob("*"))
    return {str(path): _look(directory / path) for path in paths if path.parts[0] != ".mulligan"}


def differing(one: Picture, other: Picture) -> list[str]:
    """Return the paths that differ in more than their times."""
    nothing = (0, 0, b"")
    return [p for p in one | other if one.get(p, nothing)[::2] != other.get(p, nothing)[::2]]


def _look(path: Path) -> tuple[int, int, bytes]:
    status = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    if stat.S_ISLNK(status.st_mode):
        content = bytes(path.readlink())
    return status.st_mode, status.st_mtime_ns, content
