"""Values that people type: JSON, and who they are."""

from __future__ import annotations

import getpass
import os
from typing import Any

import click


def json_value(text: str, option: str) -> Any:
    """Return the value of a JSON text; a wrong one is a usage error."""
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{option} is not JSON: {error}. A text needs quotes.") from error


def user_name() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user: a container with a number alone
        return f"user {os.getuid()}"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
