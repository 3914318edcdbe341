"""The base of every error."""

from __future__ import annotations

from typing import ClassVar


class MulliganError(Exception):
    """The base of every error that Mulligan raises deliberately."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint
        if self.hint:
            self.add_note(f"Hint: {self.hint}")  # so that tracebacks show it, too
