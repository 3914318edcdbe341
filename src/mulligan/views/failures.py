"""Failures: one sentence, a hint, an exit code."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.errors import MulliganError


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, and whether the same call may succeed later."""

    error: str
    message: str
    hint: str
    exit_code: int
    retryable: bool = False


def failure_of(error: MulliganError) -> Failure:
    """Return what an error of the library says."""
    name = type(error).__name__
    return Failure(name, str(error), error.hint, error.exit_code, error.retryable)


def failure_view(failure: Failure) -> dict[str, Any]:
    """Return a failure."""
    return {
        "error": failure.error,
        "message": failure.message,
        "hint": failure.hint,
        "exit_code": failure.exit_code,
        "retryable": failure.retryable,
    }
