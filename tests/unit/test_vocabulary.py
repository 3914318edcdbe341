"""One word, one meaning: words that the glossary of ARCHITECTURE.md replaced do not come back."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import mulligan

SOURCE = Path(mulligan.__file__).parent
TESTS = Path(__file__).parents[1]
GLOSSARY = SOURCE.parents[1] / "ARCHITECTURE.md"

RETIRED_WORDS = {
    "blame": "report",
    "blow": "fault or signal",
    "blows": "faults or signals",
    "copyist": "checkout worker",
    "copyists": "checkout workers",
    "crashpoint": "failpoint",
    "foresee": "preview",
    "foreseen": "preview",
    "hindrance": "recovery_error",
    "lookout": "scan worker",
    "lookouts": "scan workers",
    "strike": "inject",
    "strikes": "faults",
    "stray": "orphan",
    "strays": "orphans",
    "surroundings": "environment",
    "uncollected": "gc_paused",
    "vouch": "mark_checked",
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

NOUNS = (
    "Begun", "Contents", "Draft", "Head", "Limits", "Origin", "Patch", "Pending", "Place", "Plan",
    "Request", "Step", "Watcher", "Writer",
)  # fmt: skip
"""Words that several classes had as their whole name; each may name one thing."""


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


def test_no_retired_word_is_used() -> None:
    """Each that is found is shown with what to write instead."""
    assert [
        f"{file}:{line}: {name}: {instead}"
        for file in sorted(SOURCE.rglob("*.py"))
        for line, name in identifiers(file)
        for instead in _instead(name)
    ] == []


@cache
def _instead(name: str) -> list[str]:
    """Return what replaced a name or words of it."""
    names = [RETIRED_NAMES[one] for one in {name, name.lstrip("_")} if one in RETIRED_NAMES]
    return names + [RETIRED_WORDS[word] for word in words(name) if word in RETIRED_WORDS]


def test_no_file_is_named_by_a_retired_word() -> None:
    files = [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]
    assert [
        str(file) for file in files for word in words(file.stem) if word.lower() in RETIRED_WORDS
    ] == []


@cache
def _classes() -> Mapping[str, list[str]]:
    """Return where each class is defined, by its name without underscores."""
    found = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(f"{file}:{node.lineno}")
    return found


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_names_one_class(noun: str) -> None:
    """Another class gets a name that says what it is."""
    assert len(_classes().get(noun, [])) <= 1, _classes()[noun]


def test_the_glossary_explains_what_replaced_them() -> None:
    text = GLOSSARY.read_text()
    for name in ("Failpoint", "PendingRestore", "CheckpointThread", "CheckoutPlan", "Decision"):
        assert f"`{name}`" in text
