"""The files of the demo: a small project, what wrecks it, and a look at it without Mulligan."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

COMMAND = (
    "rm -rf src && echo '# TODO' > README.md && chmod -x run.sh && chmod 666 settings.toml "
    "&& mv tests/test_login.py tests/old.py && ln -sf /etc/hosts current && echo junk > junk.tmp"
)
"""What the agent ran to clean up a little; each part spoils something else."""

Picture = dict[str, tuple[str, int, int, str]]
"""What is at each path: kind, permission bits, mtime in nanoseconds, and content."""

_STORE = ".mulligan"
_SOURCES = {
    "README.md": "# Login\n\nUsers log in, and stay logged in until they log out.\n",
    "settings.toml": 'timezone = "UTC"\n',
    "src/login.py": "from session import expires\n\n\ndef login(user):\n    return expires(user)\n",
    "src/session.py": "import datetime\n\n\ndef expires(user):\n    return datetime.date.today()\n",
    "src/web/templates/login.html": "<form>…</form>\n",
    "tests/test_login.py": "def test_login():\n    assert True\n",
    "run.sh": "#!/bin/sh\nexec python3 src/login.py\n",
}


def make_project(directory: Path) -> None:
    """Make a small project: text, bytes, a script, a symlink, an empty directory, odd names."""
    for name, text in _SOURCES.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (directory / "run.sh").chmod(0o755)
    (directory / "src/logo.png").write_bytes(bytes(range(256)) * 64)
    (directory / "src/a name with spaces\nand two lines").write_text("odd, but allowed\n")
    (directory / "uploads").mkdir()
    (directory / "current").symlink_to("src/login.py")


def picture(directory: Path) -> Picture:
    """Return what is in a directory apart from stores and pointers, seen without Mulligan."""
    found: Picture = {}
    for root, directories, files in os.walk(directory):
        if _STORE in directories:
            directories.remove(_STORE)
        for name in (*directories, *files):
            path = Path(root, name)
            if name != _STORE:
                found[str(path.relative_to(directory))] = _look(path)
    return found


def differing(one: Picture, other: Picture) -> list[str]:
    """Return the paths at which two pictures differ, times of directories apart."""
    return sorted(
        path for path in one.keys() | other.keys() if _essence(one, path) != _essence(other, path)
    )


def _look(path: Path) -> tuple[str, int, int, str]:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return "symlink", mode, status.st_mtime_ns, os.readlink(path)
    if stat.S_ISDIR(status.st_mode):
        return "directory", mode, status.st_mtime_ns, ""
    return "file", mode, status.st_mtime_ns, sha256(path.read_bytes()).hexdigest()


def _essence(seen: Picture, path: str) -> tuple[str, int, str] | None:
    if path not in seen:
        return None
    kind, mode, _, content = seen[path]
    return kind, mode, content
