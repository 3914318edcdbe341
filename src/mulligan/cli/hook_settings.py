"""What `install` and `uninstall` share: whose settings are meant, and what is printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from mulligan.cli.context import CliContext
from mulligan.cli.render.text import clean, plural, print_json

if TYPE_CHECKING:
    from mulligan.coding.settings.install import Installation, Scope, Target

T = TypeVar("T")


def scope_options(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--project`` and ``--user`` to a command."""
    project = click.option(
        "--project", "scope", flag_value="project", default="project", help="Here (the default)."
    )
    user = click.option("--user", "scope", flag_value="user", help="In all your projects.")
    return project(user(function))


def complete_agent(context: click.Context, param: click.Parameter, start: str) -> list[str]:
    """Return the agents with a given prefix, for shells."""
    from mulligan.coding.settings.install import AGENTS

    return [name for name in AGENTS if name.startswith(start)]


def target(agent: str, scope: str) -> Target:
    """Return whose settings are meant, by the current directory."""
    from mulligan.coding.settings.install import Target

    chosen: Scope = "user" if scope == "user" else "project"
    return Target(agent, chosen, project_directory(), dict(os.environ))


def project_directory() -> Path:
    """Return the directory of the project: that of the nearest store, or the current one."""
    from mulligan.cli.find_store import state_home
    from mulligan.errors import StoreNotFound
    from mulligan.locate.find import nearest

    here = Path.cwd()
    try:
        return nearest(here, state_home()).directory
    except StoreNotFound:
        return here


def own_command() -> list[str]:
    """Return how an agent starts Mulligan, whatever its PATH is."""
    beside = Path(sys.executable).with_name("mulligan")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mulligan")
    return [found] if found else [sys.executable, "-m", "mulligan"]


def helper_client(*, dry_run: bool) -> Path | None:
    """Write the client of the resident helper and return it; None where there can be none."""
    from mulligan.cli.find_store import state_home
    from mulligan.resident.install import HOOK, client_path, install_client
    from mulligan.resident.version import version

    if not sys.platform.startswith("linux"):
        return None  # the helper checks its clients as Linux does
    if dry_run:
        return client_path(state_home())
    return install_client(state_home(), version(), [*own_command(), *HOOK]).path


def show(
    call: CliContext, done: Installation, store: Path | None, said: str, *, verbose: bool = True
) -> None:
    """Print what was done, with the diff; a program is shown in full only if ``verbose``."""
    if call.json:
        from mulligan.views.coding import installation_view

        print_json(installation_view(done, store))
        return
    if call.quiet:
        click.echo(str(done.file))
        return
    shown = done.diff.splitlines()
    if not verbose and is_program(done.file):
        shown = [_counted(shown, done.file)] if shown else []
    for line in (*shown, *said.splitlines()):
        click.echo(clean(line))
    if done.backup is not None:
        click.echo(clean(f"The file as it was before: {done.backup}"))


def is_program(file: Path) -> bool:
    """Whether the settings of an agent are a program, which is replaced as a whole."""
    return file.suffix == ".js"


def _counted(diff: list[str], file: Path) -> str:
    """Return the size of a change instead of its lines."""
    added = sum(line.startswith("+") and not line.startswith("+++") for line in diff)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in diff)
    counts = ((added, "added"), (removed, "removed"))
    said = ", ".join(f"{plural(n, 'line')} {what}" for n, what in counts if n)
    return f"{file}: {said}" + ("; --dry-run --verbose shows them" if added else "")
