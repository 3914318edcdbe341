"""Bringing the settings file with our hooks back that an agent deleted in the middle of its work.

``git clean -fdx`` deletes ignored files, and with them the hooks of a project. Claude Code notices
that within seconds: nothing is recorded from then on, also in its next sessions. So the hook that
comes right after the command puts the file back, as it was at the last checkpoint. Another one
makes git ignore it where the agent has made the repository.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.errors import MulliganError
from mulligan.layout import NAME

if TYPE_CHECKING:
    from mulligan.session import Session

FILES: Mapping[str, str] = {
    "claude": ".claude/settings.local.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "opencode": ".opencode/plugin/mulligan.js",
}
"""The files in which hooks of a project are, here because few processes import their modules."""

OF_ONE_USER = ("claude", "opencode")
"""The agents whose hooks in a project are in a file that has nothing for others."""

GIT_SECONDS = 5.0
RECENT = 20
"""In how many checkpoints the file is looked for."""


def put_back(session: Session, root: Path, agent: str, variables: Mapping[str, str]) -> bool:
    """Put the settings file of the project ``root`` back if it was deleted; return whether it was.

    Not after `mulligan uninstall`, nor where it would be in the way: in a directory that was
    emptied, such as for a new clone, or of a ``git stash pop`` or a branch that has the file.
    """
    name = FILES.get(agent)
    if name is None or os.path.lexists(root / name):
        return False
    try:
        if not (_is_installed(root / name, variables) and _is_in_use(root)):
            return False
        if not _is_ignored(root, name, variables) or _may_be_stashed(root, name):
            return False
        return _write(session, root / name, name)
    except (OSError, ValueError):
        return False  # such as on a full disk, or of no UTF-8; the next hook tries again


def keep_ignored(root: Path, agent: str, variables: Mapping[str, str]) -> None:
    """Make git ignore the settings file of one user in a repository that is newer than the hooks.

    It names a path of this machine, and ``git add -A`` would commit it.
    """
    from mulligan.locate.git import exclude_file, missing_exclusion

    name = FILES.get(agent)
    if name is None or agent not in OF_ONE_USER or not os.path.lexists(root / name):
        return
    with suppress(OSError, ValueError):  # the next hook tries again
        # Most hooks end here, and import nothing of settings.
        if not (added := missing_exclusion(root, name)):
            return
        from mulligan.coding.settings.additions import AdditionsRecord, records

        record = AdditionsRecord(records(variables), root / name)
        if record.exists:
            record.write_exclusion(added)
            exclude_file(root, name)


def _is_in_use(root: Path) -> bool:
    """Whether there is anything else in a directory; raises ``OSError`` if it was deleted."""
    return any(name != NAME for name in os.listdir(root))


def _is_installed(file: Path, variables: Mapping[str, str]) -> bool:
    """Whether hooks were installed in a file, and not uninstalled since."""
    from mulligan.coding.settings.additions import AdditionsRecord, records

    return AdditionsRecord(records(variables), file).exists


def _is_ignored(root: Path, name: str, variables: Mapping[str, str]) -> bool:
    """Whether git leaves a file alone, which it then also replaces without a question."""
    import subprocess  # a deleted file is rare

    from mulligan.locate.git import find_git

    if find_git(root) is None:
        return True
    try:
        done = subprocess.run(
            ["git", "check-ignore", "-q", "--", name],
            cwd=root,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _may_be_stashed(root: Path, name: str) -> bool:
    from mulligan.locate.git import may_be_stashed

    return may_be_stashed(root, name)


def _write(session: Session, file: Path, name: str) -> bool:
    """Write the file as it was at the newest checkpoint that has it."""
    from mulligan.coding.settings.settings_file import replace_file

    for checkpoint in session.checkpoints(limit=RECENT, reverse=True):
        with suppress(MulliganError):  # it has no files, or not this one
            text = session.files.read(checkpoint, name).decode()
            file.parent.mkdir(parents=True, exist_ok=True)
            # Again: the agent may have written one while the checkpoints were read.
            if os.path.lexists(file):
                return False
            replace_file(file, text, 0o600)
            return True
    return False
