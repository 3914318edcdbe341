"""Failures as people and programs see them: one sentence, a hint, an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys

import click
import msgspec

from mulligan.cli.context import Group, colour, debugging
from mulligan.cli.entry import INTERRUPTED
from mulligan.cli.render.streams import OutputFailed, wrapped
from mulligan.cli.render.terminal import style
from mulligan.errors import MulliganError, UnstorableValue
from mulligan.views.failures import Failure, failure_of, failure_view

INDENT = len("Error: ")
USAGE = 2
BUG = 70
SYSTEM = 74
CLOSED_PIPE = 141
"""The exit code that a shell reports for a program ended by SIGPIPE."""

UTF8_HINT = "Use a UTF-8 locale, for example LC_ALL=C.UTF-8."
OF_A_SESSION = ("pause", "watch", "checkpoint", "log", "events", "status", "undo", "redo")
"""Commands without arguments that work on a session, which people name after them."""

_EXTRA = re.compile(r"unexpected extra argument \((\S+)\)")

NOWHERE_HINT = (
    'If there is a new directory at its path, run `cd "$PWD"`. If it was deleted and had a store: '
    '`mkdir "$PWD"`, `cd "$PWD"`, and `mulligan restore @latest` bring its files back.'
)

SYNONYMS = {
    "--every": "--checkpoint-interval",
    "--interval": "--checkpoint-interval",
    "--message": "--note",
    "--follow": "--watch",
    "--name": "--label",
}
"""Options that people try first, and what they are called where a command has them."""


class HalfDone(KeyboardInterrupt):
    """Ctrl-C came in the middle of a restore."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def report(error: BaseException, as_json: bool) -> int:
    """Print a failure to stderr and return its exit code."""
    failure = describe(error)
    if debugging():
        import traceback  # slow to import, and seldom needed

        traceback.print_exception(error)
    if as_json:
        import json  # slow to import

        click.echo(json.dumps(failure_view(failure)), err=True)
        return failure.exit_code
    message = wrapped(failure.message, INDENT)
    click.echo(_styled("Error:", "red") + f" {message}", err=True, color=colour())
    if failure.hint:
        hint = wrapped(failure.hint, INDENT)
        click.echo(_styled("Hint:", "cyan") + f"  {hint}", err=True, color=colour())
    return failure.exit_code


def describe(error: BaseException) -> Failure:
    """Return what an exception means to the user."""
    name = type(error).__name__
    if isinstance(error, UnstorableValue) and sys.getfilesystemencoding() != "utf-8":
        # What was typed is most likely valid: without UTF-8, Python cannot read it.
        return msgspec.structs.replace(failure_of(error), hint=UTF8_HINT)
    if isinstance(error, MulliganError):
        return failure_of(error)
    if isinstance(error, click.UsageError):
        return Failure("UsageError", _usage_message(error), _usage_hint(error), USAGE)
    if isinstance(error, click.ClickException):
        hint = getattr(error, "hint", "")
        return Failure(name, error.format_message(), hint, error.exit_code)
    if isinstance(error, HalfDone):
        return Failure("Interrupted", str(error), error.hint, INTERRUPTED)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        hint = "Everything acknowledged before is kept."
        return Failure("Interrupted", "Interrupted.", hint, INTERRUPTED)
    if isinstance(error, OutputFailed):
        message = f"The output could not be written: {error.strerror}."
        return Failure(name, message, "Nothing was changed.", SYSTEM)
    if isinstance(error, FileNotFoundError) and _is_nowhere():
        message = "The current directory no longer exists."
        return Failure(name, message, NOWHERE_HINT, SYSTEM)
    if isinstance(error, UnicodeEncodeError) and not error.object.isascii():
        message = f"Some text cannot be encoded here ({error.encoding}: {error.reason})."
        return Failure(name, message, UTF8_HINT, USAGE)
    if isinstance(error, OSError):
        return Failure(name, _system_message(error), _system_hint(error), SYSTEM)
    return Failure(
        name,
        f"This is a bug in Mulligan ({name}: {error}).",
        "Run it again with MULLIGAN_DEBUG=1 and report the traceback. Nothing stored is lost.",
        BUG,
    )


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _system_message(error: OSError) -> str:
    """Return what the system refused, without the errno."""
    reason = error.strerror or str(error) or type(error).__name__
    paths = [
        os.fsdecode(p) for p in (error.filename, error.filename2) if isinstance(p, str | bytes)
    ]
    return f"The system refused: {reason}{': ' if paths else ''}{' → '.join(paths)}."


def _system_hint(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return "Nothing was written there. Choose a directory on a writable filesystem."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Everything acknowledged before is safe. Free some space, then try again."
    if error.errno == errno.EMFILE:
        return "`ulimit -n` limits the open files of a process; 1024 is enough."
    if error.errno == errno.ENFILE:
        return "Close programs that have many files open, or raise `sysctl fs.file-max`."
    if isinstance(error, PermissionError) and isinstance(error.filename, str):
        return f"It may belong to another user: `ls -ld {error.filename}` shows whose it is."
    return ""


def _usage_message(error: click.UsageError) -> str:
    """Return click's message; an option under another name is named, which spelling cannot find."""
    said = error.format_message()
    said = said if said.endswith((".", "?")) else f"{said}."
    if isinstance(error, click.NoSuchOption) and error.ctx and not error.possibilities:
        known = {name for param in error.ctx.command.params for name in param.opts}
        meant = SYNONYMS.get(error.option_name)
        return f"{said} Did you mean {meant!r}?" if meant in known else said
    return said


def _usage_hint(error: click.UsageError) -> str:
    if error.format_message().endswith(("(ago)", " ago)")):
        return "A point with a space in it needs quotes: '10m ago'."
    command = error.ctx.command_path if error.ctx else "mulligan"
    extra = _EXTRA.search(error.format_message())
    if extra and error.ctx and error.ctx.command.name in OF_A_SESSION:
        return f"If {extra[1]} is a session: `{command} -s {extra[1]}`."
    if error.ctx and isinstance(error.ctx.command, Group) and " command " in error.message:
        names = ", ".join(error.ctx.command.list_commands(error.ctx))
        return f"The commands are {names}; `{command} --help` shows how."
    return f"`{command} --help` shows how."


def _styled(text: str, colour: str) -> str:
    return style(text, fg=colour, bold=True)
