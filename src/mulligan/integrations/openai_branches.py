"""The branches of a session of the OpenAI Agents SDK.

The branch ``main`` is the component ``conversation``; every other one is a record of the component
``branches`` with the items before its turn, which share their storage with those of its origin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from mulligan.document.document import MISSING
from mulligan.integrations.json_values import all_from_stored
from mulligan.session import Session

MAIN = "main"
CONVERSATION = "conversation"
BRANCHES = "branches"
RECORD = "openai"

PREVIEW_CHARACTERS = 100


def items_path(branch: str) -> tuple[str, ...]:
    """Return where the items of a branch are."""
    return (CONVERSATION,) if branch == MAIN else (BRANCHES, branch, "items")


class Branches:
    """The branches of one session, and which of them this object uses."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._state = session.state
        self.current = MAIN

    def known(self, branch: str | None = None) -> str:
        """Return a branch, the current one by default; ``main`` if another process removed it."""
        wanted = self.current if branch is None else branch
        if wanted == MAIN or self._exists(wanted):
            return wanted
        if wanted == self.current:
            self.current = MAIN
        return MAIN

    def make(self, turn: int, name: str | None) -> str:
        """Make a branch of the items before a turn of the user, and use it."""
        if name is not None and not name.strip():
            raise ValueError("Branch name cannot be empty")
        with self._session.batch():
            source = self.known()
            items = self._state.get(items_path(source), [])
            places = [place for place, _ in _user_items(all_from_stored(items))]
            if not 1 <= turn <= len(places):
                raise ValueError(
                    f"Turn {turn} does not contain a user message in branch '{source}'"
                )
            before = self._state.get((RECORD, "taken"), MISSING)
            taken = [MAIN] if before is MISSING else before
            branch = self._free(turn, taken) if name is None else name
            if branch in taken:
                raise ValueError(
                    f"Branch ID '{branch}' has already been used. Choose a new branch ID."
                )
            made = {"items": items[: places[turn - 1]], "created": _now(), "from": [source, turn]}
            self._state.set((BRANCHES, branch), made)
            # Compared, so that of two processes only one takes the name.
            self._state.set((RECORD, "taken"), [*taken, branch], expected=before)
        self.current = branch
        return branch

    def switch(self, branch: str) -> None:
        """Use a branch from now on."""
        if branch != MAIN and not self._exists(branch):
            raise ValueError(f"Branch '{branch}' does not exist")
        self.current = branch

    def delete(self, branch: str, force: bool) -> None:
        """Delete a branch; its id stays taken."""
        if not branch or not branch.strip():
            raise ValueError("Branch ID cannot be empty")
        if branch == MAIN:
            raise ValueError("Cannot delete the 'main' branch")
        if branch == self.current and not force:
            raise ValueError(
                f"Cannot delete current branch '{branch}'. Use force=True or switch branches first"
            )
        if not self._exists(branch):
            raise ValueError(f"Branch '{branch}' does not exist")
        self._state.delete((BRANCHES, branch))
        if branch == self.current:
            self.current = MAIN

    def all(self) -> list[dict[str, Any]]:
        """Return what is known of each branch, the oldest first."""
        current = self.known()
        found = {MAIN: None, **dict(self._created())}
        return [self._shown(branch, created, current) for branch, created in found.items()]

    def turns(self, branch: str | None) -> list[dict[str, Any]]:
        """Return the turns of the user in a branch, with the start of their content."""
        return [_turn(n, c, PREVIEW_CHARACTERS) for n, c in self._contents(branch)]

    def matching(self, text: str, branch: str | None) -> list[dict[str, Any]]:
        """Return the turns of the user that contain a text; the case of ASCII letters is equal."""
        pattern = re.compile(re.escape(text), re.IGNORECASE | re.ASCII)
        return [
            _turn(number, content, None)
            for number, content in self._contents(branch)
            if any(pattern.search(said) for said in _texts(content))
        ]

    def clear(self) -> None:
        """Use ``main``, and note that what comes is another conversation."""
        self.current = MAIN
        before = self._state.get((RECORD, "generation"), MISSING)
        after = 1 if before is MISSING else before + 1
        self._state.set((RECORD, "generation"), after, expected=before)

    def _exists(self, branch: str) -> bool:
        return self._state.get((BRANCHES, branch, "created"), MISSING) is not MISSING

    def _created(self) -> Iterator[tuple[str, str]]:
        taken = self._state.get((RECORD, "taken"), [])
        for branch in taken:
            created = self._state.get((BRANCHES, branch, "created"))
            if created is not None:
                yield branch, created

    def _shown(self, branch: str, created: str | None, current: str) -> dict[str, Any]:
        path = items_path(branch)
        items = all_from_stored(self._state.get(path, []))
        return {
            "branch_id": branch,
            "message_count": len(items),
            "user_turns": len([*_user_items(items)]),
            "is_current": branch == current,
            "created_at": created or self._session.created.isoformat(),
        }

    def _contents(self, branch: str | None) -> Iterator[tuple[int, Any]]:
        wanted = self.known() if branch is None else branch
        items = all_from_stored(self._state.get(items_path(wanted), []))
        for number, (_, item) in enumerate(_user_items(items), 1):
            yield number, item.get("content", "")

    def _free(self, turn: int, taken: list[str]) -> str:
        base = branch = f"branch_from_turn_{turn}_{int(datetime.now(UTC).timestamp())}"
        number = 1
        while branch in taken:
            number += 1
            branch = f"{base}_{number}"
        return branch


def is_user(item: Any) -> bool:
    """Whether an item is a message of the user, with which a turn begins."""
    return isinstance(item, dict) and item.get("role") == "user"


def _user_items(items: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the place and the item of every message of the user."""
    for place, item in enumerate(items):
        if is_user(item):
            yield place, item


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.get("text", "") for part in content if isinstance(part, dict)]


def _turn(number: int, content: Any, most: int | None) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if most is not None and len(text) > most:
        text = text[:most] + "..."
    return {
        "turn": number,
        "content": text,
        "full_content": content,
        "timestamp": None,
        "can_branch": True,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()
