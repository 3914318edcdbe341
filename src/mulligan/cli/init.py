"""mulligan init."""

from __future__ import annotations

from pathlib import Path

import click

from mulligan.cli.context import ACTOR, DEFAULT_SESSION, Call, Command, example
from mulligan.cli.render import print_json


@click.command("init", cls=Command, epilog=example("mulligan init", "mulligan init ~/work/agent"))
@click.argument("directory", metavar="[DIR]", required=False)
@click.pass_obj
def command(call: Call, directory: str | None) -> None:
    """Make a store in DIR (here, if none is given) with a first session.

    Running it again is fine: what is there stays as it is.
    """
    import mulligan
    from mulligan.layout import FORMAT, locate

    root = Path(directory or call.store or ".").absolute()
    is_new = not (locate(root) / FORMAT).is_file()
    with mulligan.open(root) as store:
        known = [session.name for session in store.sessions()]
        name = call.session or (DEFAULT_SESSION if not known else None)
        if name is not None and name not in known:
            store.session(name, actor=ACTOR)
        sessions = [session.name for session in store.sessions()]
        _print(call, str(store.path), is_new, sessions)


def _print(call: Call, path: str, is_new: bool, sessions: list[str]) -> None:
    if call.json:
        print_json({"store": path, "created": is_new, "sessions": sessions})
    elif not call.quiet:
        made = "Made a store at" if is_new else "There is a store already, left as it is:"
        click.echo(f"{made} {path}")
        click.echo("Take a checkpoint with `mulligan checkpoint`, look with `mulligan log`.")
