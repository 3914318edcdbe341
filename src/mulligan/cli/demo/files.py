"""The files of the demo: a small project, a command that wrecks it, and a look without Mulligan."""

from __future__ import annotations

from pathlib import Path

COMMAND = """rm -rf src && echo '# TODO' > README.md && chmod -x run.sh &&
   chmod 666 settings.toml && mv tests/test_login.py tests/old.py &&
   ln -sf /etc/hosts current && echo junk > junk.tmp"""
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
    """Make a small project: text, bytes, a script, a symlink, empty directories, odd names."""
    for place in ("src/web/templates", "tests", "notes", "uploads"):
        (directory / place).mkdir(parents=True)
    for name, content in _SOURCES.items():
        (directory / name).write_bytes(content)
    (directory / "run.sh").chmod(0o755)
    (directory / "current").symlink_to("src/login.py")


def picture(directory: Path) -> dict[Path, tuple[int, int, object]]:
    """Return mode, time and content of all in a directory, apart from the store and pointers."""
    found: dict[Path, tuple[int, int, object]] = {}
    for path in directory.rglob("*"):
        name, status = path.relative_to(directory), path.lstat()
        content = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        if name.parts[0] != ".mulligan":
            found[name] = (status.st_mode, status.st_mtime_ns, content)
    return found
