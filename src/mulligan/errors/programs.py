"""Errors of other programs that use Mulligan: coding agents, tools, the resident helper."""

from __future__ import annotations

from mulligan.errors.base import MulliganError


class CodingAgentError(MulliganError):
    """The hooks of a coding agent, or its settings, cannot be used as requested."""


class InvalidHook(CodingAgentError):
    """The JSON that a coding agent gave its hook cannot be used."""

    exit_code = 103
    default_hint = "Nothing was recorded. The next hook records what this one would have."


class InvalidSettings(CodingAgentError):
    """The settings file of a coding agent is not as expected."""

    exit_code = 104
    default_hint = "Nothing was changed. Fix the file, or add the hooks by hand."


class HooksUnhealthy(CodingAgentError):
    """A check of hooks and store found something wrong."""

    exit_code = 105
    default_hint = "The sentences above say what is wrong and what helps."


class CannotRewind(CodingAgentError):
    """A conversation cannot be taken back as requested."""

    exit_code = 106
    default_hint = "Nothing was changed. `mulligan rewind` lists the prompts of a conversation."


class RequestError(MulliganError):
    """A request of another program cannot be answered as it was made."""


class InvalidArguments(RequestError):
    """A tool was called with arguments that it does not take."""

    exit_code = 124
    default_hint = "Nothing was done. The schema of the tool says what it takes."


class UnsafeHelper(RequestError):
    """The directory of the resident helper does not belong to this user."""

    exit_code = 125
    default_hint = "Nothing was sent. Hooks work without the helper; remove that directory."
