"""How a workspace is captured, as the configuration of a store says; read when one is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from mulligan.config.tables import TableReader

SIZES = ("max_file_size", "budget")


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command that writes a copy of matching files, to ``{output}`` or to standard output."""

    files: list[str]
    run: list[str]


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which files are captured through snapshots, and which commands run around a capture."""

    sqlite: list[str] = []
    command: list[Command] = []
    before: list[str] = []
    after: list[str] = []
    timeout: float = 30.0

    @property
    def has_commands(self) -> bool:
        """Whether any program is to be run."""
        return bool(self.command or self.before or self.after)

    def __post_init__(self) -> None:
        """Refuse invalid patterns, and commands without a program."""
        patterns = [*self.sqlite, *(file for command in self.command for file in command.files)]
        if patterns:
            from mulligan.workspace.capture.ignore import compiled  # seldom configured

            compiled(patterns)
        if not all(command.run for command in self.command):
            raise ValueError("a command to take snapshots with has nothing to run")


class CaptureLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a workspace is captured: limits per file and in total, and application snapshots."""

    max_file_size: int = 4 << 30
    budget: int = 64 << 30
    snapshot: Snapshot = Snapshot()


def parse_limits(table: Mapping[str, Any], reader: TableReader) -> CaptureLimits:
    """Return the limits of ``[workspace]``; sizes are numbers of bytes, or texts such as 4GB."""
    from mulligan.config.values import size  # seldom configured

    sizes = {}
    for key in SIZES:
        if isinstance(said := table.get(key), str):
            try:
                sizes[key] = size(said)
            except ValueError as error:
                raise reader.error(("workspace", key), str(error)) from error
    return reader.build({**table, **sizes}, ("workspace",), CaptureLimits)
