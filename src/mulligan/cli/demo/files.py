"""The files of the demo: a small project, a command that wrecks it, and a look without Mulligan."""

from __future__ import annotations

from pathlib import Path

COMMAND = (
    "rm -rf src && echo '# TODO' > README.md && chmod -x run.sh &&\n"
    "chmod 666 settings.toml && mv tests/test_login.py tests/old.py &&\n"
    "ln -sf /etc/hosts current && echo junk > junk.tmp"
)
"""The agent's attempt to clean up; each part spoils something else."""

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
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    (directory / "run.sh").chmod(0o755)
    (directory / "uploads").mkdir()
    (directory / "current").symlink_to("src/login.py")


def picture(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and content of all in a directory, apart from the store and pointers."""
    found = {}
    for path in directory.rglob("*"):
        name, status, content = path.relative_to(directory), path.lstat(), b""
        if path.is_symlink():
            content = bytes(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        if name.parts[0] != ".mulligan":
            found[str(name)] = (status.st_mode, status.st_mtime_ns, content)
    return found
