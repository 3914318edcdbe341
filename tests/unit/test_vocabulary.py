"""One word, one meaning: words that the glossary of ARCHITECTURE.md replaced do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan

SOURCE = Path(mulligan.__file__).parent
GLOSSARY = SOURCE.parents[1] / "ARCHITECTURE.md"

RETIRED_WORDS = {
    "blame": "report",
    "copyist": "checkout worker",
    "copyists": "checkout workers",
    "crashpoint": "failpoint",
    "foresee": "preview",
    "foreseen": "preview",
    "hindrance": "recovery_error",
    "lookout": "scan worker",
    "lookouts": "scan workers",
    "stray": "orphan",
    "strays": "orphans",
    "surroundings": "environment",
    "uncollected": "gc_paused",
    "whereabouts": "locate_many",
}
"""Not even as a part of an identifier."""

RETIRED_NAMES = {
    "Aside": "FileCopies",
    "Ask": "Decision",
    "Beats": "HeartbeatReader",
    "Begun": "PendingRestore",
    "Beside": "TemporaryNames",
    "Call": "CliContext",
    "Doctor": "HealthChecker",
    "Filler": "FileWriter",
    "Fresh": "Checkout",
    "Frozen": "StoppedAgent",
    "Guard": "Watchdog",
    "Heart": "HeartbeatWriter",
    "Keeper": "CheckpointThread",
    "Reach": "FailpointHook",
    "Shell": "Runner",
    "Speaker": "OutputQueue",
    "Waits": "LockWaitMonitor",
    "Whole": "SingleChunkFile",
    "happened": "event_change",
    "pass_by": "ignore",
    "reach": "failpoint",
    "spare": "split_protected",
    "LAST": "KILL_AFTER_PAUSE_SECONDS",
    "LOOK": "POLL_SECONDS",
    "MOST": "MAX_…",
    "MUCH": "…_BYTES",
    "NAP": "POLL_SECONDS",
    "QUIET": "…_SECONDS",
    "SICK": "MAX_FAILED_HEALTH_CHECKS",
    "WORTH": "MIN_…_PER_WORKER",
}
"""Not as an identifier of their own."""


def identifiers(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that a file defines, uses or imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield line, name
            case ast.ClassDef(name=name):
                yield line, name
            case ast.keyword(arg=str(name)):
                yield line, name
            case ast.alias(name=name, asname=other):
                yield from ((line, part) for part in name.split("."))
                if other:
                    yield line, other


def words(identifier: str) -> list[str]:
    """Return the words of an identifier, in snake or in camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: f.name)
def test_no_retired_word_is_used(file: Path) -> None:
    for line, name in identifiers(file):
        instead = RETIRED_NAMES.get(name) or RETIRED_NAMES.get(name.lstrip("_"))
        assert instead is None, f"{file}:{line}: {name} is {instead} now"
        for word in words(name):
            assert word not in RETIRED_WORDS, f"{file}:{line}: {name}: {RETIRED_WORDS[word]}"


def test_the_glossary_explains_what_replaced_them() -> None:
    text = GLOSSARY.read_text()
    for name in ("Failpoint", "PendingRestore", "CheckpointThread", "CheckoutPlan", "Decision"):
        assert f"`{name}`" in text
