"""What this process knows of checkpoints that it saved or loaded, and what a new one changes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from mulligan.integrations.langgraph.changes import StateChanges
from mulligan.integrations.langgraph.layout import SMALL_VALUE, Record
from mulligan.integrations.langgraph.lists import KnownList, ListChange, after, list_change
from mulligan.integrations.langgraph.references import RecentWrites
from mulligan.integrations.langgraph.values import ValueCodec

MAX_KNOWN = 8
"""How many checkpoints of a thread are known at a time."""


class KnownCheckpoint(NamedTuple):
    """A checkpoint's values as they are stored at its seq, and the objects of its lists."""

    seq: int
    versions: dict[str, Any]
    lists: dict[str, KnownList]
    small: dict[str, Any]
    large: dict[str, Any]

    @classmethod
    def read(
        cls, record: Record, seq: int, stored: dict[str, Any], codec: ValueCodec
    ) -> KnownCheckpoint:
        """Return a checkpoint that was read; its lists get the objects that are handed out."""
        return cls(
            seq,
            codec.decode(record.checkpoint).get("channel_versions", {}),
            {name: _decoded(stored["lists"][name], codec) for name in record.lists},
            record.small,
            {name: stored["values"][name] for name in record.large},
        )

    def again(self, codec: ValueCodec) -> KnownCheckpoint:
        """Return the checkpoint with new objects, for another reader."""
        lists = {name: _decoded(known.stored, codec) for name, known in self.lists.items()}
        return self._replace(lists=lists)

    def values(self, codec: ValueCodec) -> dict[str, Any]:
        """Return the values of the channels. Lists are new ones, with the known objects."""
        single = {**self.small, **self.large}
        return {
            **{name: codec.decode(stored) for name, stored in single.items()},
            **{name: list(known.items) for name, known in self.lists.items()},
        }


def _decoded(stored: list[Any], codec: ValueCodec) -> KnownList:
    return KnownList(codec.decode_list(stored), stored)


class KnownCheckpoints:
    """The last checkpoints of a thread that this process saved or loaded."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], KnownCheckpoint] = OrderedDict()

    def add(self, namespace: str, id: str, known: KnownCheckpoint) -> None:
        """Remember a checkpoint, and forget the one that was not used for longest."""
        self._known[namespace, id] = known
        self._known.move_to_end((namespace, id))
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def at(self, namespace: str, id: str, seq: int) -> KnownCheckpoint | None:
        """Return a checkpoint if it is known as it was saved at that seq."""
        known = self._known.get((namespace, id))
        return known if known is not None and known.seq == seq else None

    def take(self, namespace: str, id: str | None) -> KnownCheckpoint | None:
        """Return a checkpoint that a new one follows, and forget it: its lists are used up."""
        return None if id is None else self._known.pop((namespace, id), None)


class Update(NamedTuple):
    """The values of a new checkpoint: how they are stored, and what changes in the state."""

    versions: dict[str, Any]
    items: dict[str, list[Any]]
    before: KnownCheckpoint
    changes: dict[str, ListChange]
    small: dict[str, Any]
    large: dict[str, Any]
    new_large: set[str]

    @classmethod
    def of(
        cls,
        checkpoint: dict[str, Any],
        changed: set[str],
        encoded: dict[str, Any],
        before: KnownCheckpoint | None,
        codec: ValueCodec,
    ) -> Update:
        """Return how a checkpoint differs from the one before, if that is known.

        ``encoded`` are those of the changed values that are encoded already.
        """
        before = before or KnownCheckpoint(0, {}, {}, {}, {})
        made = cls(dict(checkpoint["channel_versions"]), {}, before, {}, {}, {}, set())
        for name, value in checkpoint["channel_values"].items():
            version = made.versions.get(name)
            is_same = version is not None and version == before.versions.get(name)
            if name in encoded:
                made._add_whole(name, encoded[name])
            else:
                made._add(name, value, codec, is_same=is_same and name not in changed)
        made._inherit(made.versions.keys() - checkpoint["channel_values"].keys() - changed)
        return made

    def _inherit(self, names: set[str]) -> None:
        """Keep what is stored for channels that have no value now, but the version from before.

        So a delta channel that was stored whole is, until it is written again.
        """
        for name in names:
            if self.versions[name] != self.before.versions.get(name):
                continue
            if name in self.before.lists:
                known = self.before.lists[name]
                self.items[name], self.changes[name] = known.items, known.unchanged()
            elif name in self.before.small:
                self.small[name] = self.before.small[name]
            elif name in self.before.large:
                self.large[name] = self.before.large[name]

    def _add(self, name: str, value: Any, codec: ValueCodec, *, is_same: bool) -> None:
        if type(value) is list:
            self.items[name] = value
            known = self.before.lists.get(name, KnownList([], []))
            is_kept = is_same and name in self.before.lists
            self.changes[name] = known.unchanged() if is_kept else list_change(known, value, codec)
            return
        for kept, here in ((self.before.small, self.small), (self.before.large, self.large)):
            if is_same and name in kept:
                here[name] = kept[name]
                return
        self._add_whole(name, codec.encode(value))

    def _add_whole(self, name: str, stored: Any) -> None:
        if stored is None or (type(stored) is bytes and len(stored) <= SMALL_VALUE):
            self.small[name] = stored
        else:
            self.large[name] = stored
            self.new_large.add(name)

    def lengths(self) -> dict[str, list[int | None]]:
        """Return the length of each list, and of the one before if it begins with that."""
        return {
            name: [change.length, self._beginning(name, change)]
            for name, change in self.changes.items()
        }

    def _beginning(self, name: str, change: ListChange) -> int | None:
        known = self.before.lists.get(name)
        if known is None or change.same < len(known.stored):
            return None
        return change.same

    def whole(self) -> dict[str, Any]:
        """Return all lists and large values as they are stored."""
        return {"lists": {name: self._list(name) for name in self.changes}, "values": self.large}

    def _list(self, name: str) -> list[Any]:
        change = self.changes[name]
        known = self.before.lists.get(name, KnownList([], []))
        stored = known.stored[: change.keep]
        for index, value in change.replaced.items():
            stored[index] = value
        return stored + change.added

    def write_changes(
        self, state: StateChanges, place: tuple[str, ...], recent: RecentWrites
    ) -> None:
        """Change the state from the checkpoint before to this one."""
        for part, before, now in (
            ("lists", self.before.lists, self.changes),
            ("values", self.before.large, self.large),
        ):
            for name in before:
                if name not in now:
                    state.delete((*place, part, name))
        for name, change in self.changes.items():
            path = (*place, "lists", name)
            if name not in self.before.lists:
                state.set(path, recent.referred(change.added, state))
                continue
            if change.keep < len(self.before.lists[name].stored):
                state.truncate(path, change.keep)
            for index, value in change.replaced.items():
                state.set((*path, index), value)
            if change.added:
                state.extend(path, recent.referred(change.added, state))
        for name in self.new_large:
            state.set((*place, "values", name), self.large[name])

    def known(self, seq: int) -> KnownCheckpoint:
        """Return what is known once the checkpoint is saved; the one before is used up."""
        lists = {
            name: after(self.before.lists.get(name, KnownList([], [])), self.items[name], change)
            for name, change in self.changes.items()
        }
        return KnownCheckpoint(seq, self.versions, lists, self.small, self.large)
