"""mulligan demo."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.terminal import style
from mulligan.cli.render.text import print_json

if TYPE_CHECKING:
    from mulligan import Store
    from mulligan.cli.demo.story import Story, Told

FAILED, PROJECT = 1, "project"


@click.command("demo", cls=Command, epilog=example("mulligan demo", "mulligan demo --keep"))
@click.option("--keep", is_flag=True, help="Keep the store of the demo to look around in.")
@click.pass_obj
def command(call: CliContext, keep: bool) -> None:
    """See agents killed, resumed, rolled back and forked, and files wrecked and restored.

    Every claim is checked. It happens in a temporary directory and takes a few seconds. The exit
    code is 1 if any check fails.
    """
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="mulligan-demo-"))
    stage = _Stage(directory, quiet=call.json or call.quiet)
    try:
        stage.play()
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - started
    failed = [check["claim"] for check in stage.checks if not check["ok"]]
    kept = str(directory / PROJECT) if keep else None
    if call.json:
        fields = {"ok": not failed, "seconds": round(seconds, 3), "store": kept}
        print_json({**fields, **stage.facts, "checks": stage.checks})
    else:
        for claim in failed:
            click.echo(f"This check failed: {claim}.", err=True)
    if not (call.json or call.quiet):
        held = len(stage.checks) - len(failed)
        click.echo(f"\n{held} of {len(stage.checks)} checks held, in {seconds:.1f} seconds.")
        if kept:
            click.echo(f"Store and files are kept: mulligan --store {kept} -s demo log")
    if failed:
        raise click.exceptions.Exit(FAILED)


class _Stage:
    """Plays the story: prints and keeps what its acts tell, and starts and ends its processes."""

    def __init__(self, directory: Path, *, quiet: bool) -> None:
        self._project, self._quiet = directory / PROJECT, quiet
        self._processes: list[subprocess.Popen[str]] = []
        self.checks: list[dict[str, Any]] = []
        self.facts: dict[str, dict[str, Any]] = {}

    def play(self) -> None:
        """Play all acts, up to the first one with a check that fails."""
        import mulligan
        from mulligan.cli.demo.story import ACTS, Story

        self._say(f"{style('Mulligan', bold=True)}: a second try from the same spot")
        self.facts = {name: {} for name in ACTS}
        other = self._project.with_name("rewrite")
        with mulligan.open(self._project) as store:
            story = Story(store, self._project, other, self._start)
            try:
                for name in ACTS:
                    if all(check["ok"] for check in self.checks):
                        self._act(name, getattr(story, name))
            finally:
                self._end(story)
            if not self._quiet:
                _print_timelines(store)

    def _act(self, name: str, act: Callable[[], Told]) -> None:
        for told in act():
            if isinstance(told, str):
                self._say(f"   {told}")
            elif isinstance(told, tuple):
                self._check(*told)
            else:
                if not self.facts[name]:
                    self._chapter(name, (act.__doc__ or "").format(**told))
                self.facts[name] |= told

    def _chapter(self, name: str, text: str) -> None:
        title, _, text = text.partition(": ")
        number = list(self.facts).index(name) + 1
        self._say("\n" + style(f"{number}  {title}", "cyan", bold=True))
        self._say(f"   {text}")

    def _check(self, claim: str, holds: bool) -> None:
        self.checks.append({"claim": claim, "ok": holds})
        mark, colour = ("✓", "green") if holds else ("✗ not so:", "red")
        self._say(f"   {style(mark, colour, bold=True)} {claim}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.echo(text)

    def _start(self, *module: str, place: Path | None = None) -> subprocess.Popen[str]:
        """Start a module in a session of its own, where Ctrl-C does not reach it."""
        # Ctrl-C waits meanwhile, so that every process is known and ended.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started = subprocess.Popen(
                [sys.executable, "-m", *module],
                cwd=place or self._project,
                env={**os.environ, "MULLIGAN_STORE": str(self._project)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._processes.append(started)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return started

    def _end(self, story: Story) -> None:
        from mulligan.cli.demo.agents import APPROVED

        if any(process.poll() is None for process in self._processes):
            # Ends hard work, so that a team that is interrupted reaches its safe points soon.
            story.crew.state.set(APPROVED, True)
        for process in self._processes:
            process.terminate()
            process.wait()


def _print_timelines(store: Store) -> None:
    from mulligan.cli.render.log import print_entries
    from mulligan.views.log import log_page

    for session in store.sessions():
        title = f"The timeline of {session.name!r}, newest first"
        click.echo("\n" + style(title, bold=True))
        print_entries(session, log_page(session).entries)
