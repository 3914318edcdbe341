"""Documents, comments and messages are in plain words: some phrases do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mulligan

SOURCE = Path(mulligan.__file__).parent
PROJECT = SOURCE.parents[1]

REFUSED = {
    r"(some|every|no|any)body": "name the process, the user, or use the passive",
    r"whoever": "name the process, the caller or the reader",
    r"so many": "the number, or 'this many'",
    r"of before": "previous, earlier",
    r"anew": "again",
    r"given back": "released, returned",
    r"for whom": "the process that",
    r"(what|which) (came|became) of": "the result of",
    r"come what may": "in any case",
    r"(is|are) told of": "is called with, gets",
    r"all the same": "still, anyway",
    r"for ever": "forever",
    r"more than nothing": "more than 0",
    r"from 0 on": "0 or more",
    r"knows? of no": "there is no",
    r"go wrong otherwise": "otherwise go wrong",
    r"so it does for": "the same holds for",
    r"(is|was|were) (made|known|spoken) by no": "was not made by …",
    r"knows that now": "names it now",
    r"takes? the mark away": "removes the mark",
    r"begun": "started, in progress, pending",
}
"""What not to write, and what to write instead."""

# Kinds of events, tags and constants on disk keep the word: ``restore.begun``, ``"begun"``.
_PHRASES = re.compile(rf"(?<![.\-_`\"\w])({'|'.join(REFUSED)})(?![\w])", re.IGNORECASE)


def _checked() -> list[Path]:
    documents = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    return sorted([*documents, *SOURCE.rglob("*.py")])


def _name(file: Path) -> str:
    return str(file.relative_to(PROJECT))


def refused(text: str) -> list[str]:
    """Return the refused phrases of a text."""
    return [match.group() for match in _PHRASES.finditer(text)]


def test_all_is_in_plain_words() -> None:
    found = [
        f"{_name(file)}:{number}: {word}"
        for file in _checked()
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for word in refused(line)
    ]
    assert found == [], f"instead: {REFUSED}"


@pytest.mark.parametrize(
    "text", ["Nobody reads it.", "files of before", "a restore that was begun", "at so many bytes"]
)
def test_a_refused_phrase_is_found(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize("text", ["`restore.begun`", "JOURNAL_BEGUN = 'journal-begun'", "renew"])
def test_a_name_on_disk_is_not_refused(text: str) -> None:
    assert not refused(text)
