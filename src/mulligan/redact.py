"""Redact the commands that are stored to restart agents, so that no secret is kept in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

HIDDEN = "[not kept: looks like a secret]"
"""Replaces an argument that must not be stored."""

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS|PWD$|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|AUTH|COOKIE|DSN|_KEY$|^KEY$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]+:[^/\s@]+@"
    r"|-----BEGIN "
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abprs]-"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\."
)


_OPTION = r"--?[A-Za-z][\w-]*"
_NAMED = r"(?s)(-{0,2}[A-Za-z_][\w-]*)(?:=|:\s+)(.+)"
_SCRIPTED = r"[\"']?(--[A-Za-z][\w-]*|[A-Z_][A-Z0-9_]*)=(.+)"
_BEARER = r"(?i)authorization[\"']?\s*:\s*[\"']?(?:bearer|basic|token)\s+[^\s$\"'{]"
_HARMLESS_NAME = (
    r"^(?:NO|SKIP|USE|WITH|MAX|MIN)_|_(?:FILE|PATH|DIR|ENV|NAME|TYPE|MODE|LIMIT|COUNT)$"
    r"|^AUTHORS?$|_AUTHORS?$"
)
_HARMLESS_VALUE = r"(?i)$|-|[\"']?\$|(?:true|false|yes|no|on|off|none)$"
"""Patterns for commands; compiled at their first use, since checkpoints need none of them."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one that must not be stored."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def without_secrets(command: Iterable[str]) -> list[str]:
    """Return a command with the arguments that look like secrets replaced.

    They are recognised by their form or by the name before them: ``--password X``, ``--api-key=X``,
    ``TOKEN=X``, ``Authorization: Bearer X``; also inside the text of a script.
    """
    return [
        HIDDEN if _is_secret_part(last, part) else part for last, part in pairwise(["", *command])
    ]


def _is_secret_part(last: str, part: str) -> bool:
    if is_secret("", part) or re.search(_BEARER, part) or _is_secret_option(last, part):
        return True
    if (named := re.fullmatch(_NAMED, part)) and _is_secret_value(*named.groups()):
        return True
    words = ["", *part.split()]
    # A single word was judged above; a script is judged word by word.
    return len(words) > 2 and any(
        _is_secret_option(last, word)
        or ((named := re.match(_SCRIPTED, word)) and _is_secret_value(*named.groups()))
        for last, word in pairwise(words)
    )


def _is_secret_option(option: str, value: str) -> bool:
    return bool(re.fullmatch(_OPTION, option)) and _is_secret_value(option, value)


def _is_secret_value(name: str, value: str) -> bool:
    """Whether a name indicates that its value is a secret, not a location or a count."""
    name = name.lstrip("-").replace("-", "_").upper()
    if re.search(_HARMLESS_NAME, name) or re.match(_HARMLESS_VALUE, value):
        return False
    # MAX_TOKENS=4096 is a count; a numeric password is still a secret.
    if re.fullmatch(r"[\d.]+", value) and not re.search("PASSW|PWD|SECRET", name):
        return False
    return is_secret(name, "")
