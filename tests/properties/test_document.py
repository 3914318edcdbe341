"""Values on their way into objects and back, and the document's changes, for any value at all."""

from __future__ import annotations

import copy
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mulligan
from mulligan import codec
from mulligan.codec import Ref
from mulligan.document import nodes
from mulligan.document.compare import derive, differences, same
from mulligan.document.document import EMBED_LIMIT, MISSING, Document, settle, settle_root
from mulligan.document.fold import APPEND, EMPTY, STATE, fold
from mulligan.document.values import freeze
from mulligan.model import Digest, ObjectKind

OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(timezones=st.none() | st.just(UTC) | OFFSETS)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.sampled_from([2**63, 2**64, -(2**63), -(2**63) - 1, 2**64 - 1])
    | st.floats()
    | st.text()
    | st.binary()
    | MOMENTS.map(lambda moment: moment.replace(fold=0))
)
KEYS = st.text(max_size=8)
SIZES = st.sampled_from([63, 64, 65, 130, 1_100, 4_096, 4_097])
LONG_TEXTS = st.builds(lambda text, n: (text or "x") * n, st.text(max_size=3), SIZES)
LONG_LISTS = st.builds(
    lambda n, items: [items[i % len(items)] for i in range(n)],
    SIZES,
    st.lists(SCALARS, min_size=1, max_size=3),
)
WIDE_DICTS = st.builds(
    lambda n, items: {f"key {i}": items[i % len(items)] for i in range(n)},
    st.sampled_from([63, 64, 65, 130, 1_100]),
    st.lists(SCALARS, min_size=1, max_size=3),
)
VALUES = st.recursive(
    SCALARS | LONG_TEXTS | LONG_LISTS | WIDE_DICTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=8,
)
STATES = st.dictionaries(KEYS, VALUES, max_size=5)


class Objects:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.contents: dict[Digest, bytes] = {}

    def put(self, data: bytes) -> Digest:
        digest = codec.digest(ObjectKind.VALUE, data)
        self.contents[digest] = data
        return digest

    def document(self, root: Any) -> Document:
        return Document(root, self.contents.__getitem__)

    def reloaded(self, root: Any) -> Document:
        """Return the document as another process would find it."""
        return self.document(codec.decode(self.contents[settle_root(root, self.put)]))


def strict(value: Any) -> Any:
    """Return a value in which what differs in type differs, as True and 1 and 1.0 do."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return type(value), repr(value)


def identity(frozen: Any) -> Digest:
    return settle_root(frozen, Objects().put)


# --- round trips -----------------------------------------------------------------------------


@given(VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    objects = Objects()
    document = objects.reloaded(freeze(value))
    assert strict(document.plain(document.root)) == strict(value)


@given(VALUES)
def test_what_stays_inside_its_parent_is_small(value: Any) -> None:
    objects = Objects()
    data = settle(freeze(value), objects.put)
    assert len(data) <= EMBED_LIMIT
    assert strict(objects.document(None).plain(codec.decode(data))) == strict(value)


@given(VALUES)
def test_the_plain_value_is_the_callers_own(value: Any) -> None:
    frozen = freeze(value)
    before = identity(frozen)
    document = Objects().document(frozen)
    _spoil(document.plain(frozen))
    _spoil(value)
    assert identity(frozen) == before


def _spoil(value: Any) -> None:
    """Change every container inside a plain value."""
    if isinstance(value, dict):
        for item in list(value.values()):
            _spoil(item)
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            _spoil(item)
        value.append("spoilt")


@given(VALUES, VALUES)
def test_equal_values_have_equal_digests_and_only_they(one: Any, other: Any) -> None:
    equal = strict(one) == strict(other)
    assert (identity(freeze(one)) == identity(freeze(other))) == equal
    assert same(freeze(one), freeze(other)) == equal
    assert identity(freeze(one)) == identity(freeze(copy.deepcopy(one)))


@given(VALUES)
def test_loaded_and_fresh_are_the_same(value: Any) -> None:
    objects = Objects()
    frozen = freeze(value)
    loaded = objects.reloaded([frozen]).root
    assert same(frozen, loaded[0])
    assert identity([frozen]) == identity(loaded)


@given(st.dictionaries(KEYS, SCALARS, max_size=200), st.randoms())
def test_the_order_of_keys_does_not_matter(entries: dict[str, Any], shuffler: Any) -> None:
    shuffled = list(entries.items())
    shuffler.shuffle(shuffled)
    assert identity(freeze(dict(shuffled))) == identity(freeze(entries))


# --- any history, one shape ------------------------------------------------------------------

EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "set many", "drop", "drop many", "extend", "put", "cut", "reload"]),
        st.integers(0, 300),
        st.integers(0, 200),
    ),
    max_size=30,
)


@given(EDITS)
@example([("set many", 0, 200), ("reload", 0, 0), ("drop many", 0, 200)])
@example([("set many", 0, 200), ("drop many", 100, 150), ("reload", 0, 0), ("set", 1, 0)])
@example([("extend", 0, 200), ("reload", 0, 0)] * 12)
def test_the_digest_does_not_tell_how_the_value_came_about(
    edits: list[tuple[str, int, int]],
) -> None:
    objects = Objects()
    document = objects.document({"map": {}, "list": []})
    model: dict[str, Any] = {"map": {}, "list": []}
    for name, where, count in edits:
        document = _edited(objects, document, model, name, where, count)
    assert strict(document.plain(document.root)) == strict(model)
    assert identity(document.root) == identity(freeze(model))


def _edited(
    objects: Objects,
    document: Document,
    model: dict[str, Any],
    name: str,
    where: int,
    count: int,
) -> Document:
    entries, items = model["map"], model["list"]
    keys = [f"key {n}" for n in range(where, where + (count if "many" in name else 1))]
    if name.startswith("set"):
        for key in keys:
            entries[key] = value = f"{key} is {count} " * (count % 7)
            document = document.set(("map", key), value)
    elif name.startswith("drop"):
        for key in keys:
            if entries.pop(key, MISSING) is not MISSING:
                document = document.delete(("map", key))
    elif name == "extend":
        added = [f"item {where} {n}" for n in range(count)]
        items += added
        document = document.extend(("list",), added)
    elif name == "put" and items:
        items[where % len(items)] = count
        document = document.set(("list", where % len(items)), count)
    elif name == "cut" and items:
        del items[where % (len(items))]
        document = document.delete(("list", where % (len(items) + 1)))
    elif name == "reload":
        document = objects.reloaded(document.root)
    return document


@pytest.mark.parametrize("start", [0, 1, 63, 64, 4_095, 4_096, 4_097, 262_143])
@pytest.mark.parametrize("more", [1, 64, 4_097])
def test_a_list_grows_into_the_same_shape(start: int, more: int) -> None:
    objects = Objects()
    document = objects.reloaded({"list": nodes.build_list(list(range(start)))})
    grown = document.extend(("list",), list(range(start, start + more)))
    whole = {"list": nodes.build_list(list(range(start + more)))}
    assert identity(grown.root) == identity(whole)


def test_an_appended_list_shares_its_earlier_segments() -> None:
    objects = Objects()
    items = [f"message {number} " * 20 for number in range(5_000)]
    document = objects.reloaded(freeze({"conversation": items}))
    before = sum(map(len, objects.contents.values()))
    settle_root(document.extend(("conversation",), ["one more"]).root, objects.put)
    assert sum(map(len, objects.contents.values())) - before < 40_000


# --- changes ---------------------------------------------------------------------------------


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two states, often alike: the second an edited copy of the first."""
    one = draw(STATES)
    if draw(st.booleans()):
        return one, draw(STATES)
    other = copy.deepcopy(one)
    for _ in range(draw(st.integers(0, 3))):
        _edit_somewhere(draw, other)
    return one, other


def _edit_somewhere(draw: st.DrawFn, state: dict[str, Any]) -> None:
    node: Any = state
    while node and draw(st.booleans()):
        inner = list(node.values() if isinstance(node, dict) else node)
        inner = [value for value in inner if isinstance(value, dict | list)]
        if not inner:
            break
        node = draw(st.sampled_from(inner))
    key: Any = draw(KEYS) if isinstance(node, dict) else draw(st.integers(0, len(node)))
    if isinstance(node, list) and key == len(node):
        node += draw(st.lists(VALUES, max_size=3))
    elif draw(st.booleans()):
        node[key] = draw(VALUES)
    elif isinstance(node, list) or key in node:
        del node[key]


@given(pairs(), st.booleans())
def test_derived_changes_turn_any_state_into_any_other(
    both: tuple[dict[str, Any], dict[str, Any]], reload: bool
) -> None:
    objects = Objects()
    document = objects.document({**EMPTY, "state": freeze(both[0])})
    if reload:
        document = objects.reloaded(document.root)
    wanted = freeze(both[1])
    changed = document
    for kind, payload in list(derive(document, document.find(STATE), wanted, ())):
        changed = fold(changed, kind, payload, 1)
    assert strict(changed.plain(changed.find(STATE))) == strict(both[1])
    assert same(changed.find(STATE), wanted)


@given(pairs(), st.booleans())
def test_there_are_differences_exactly_where_values_differ(
    both: tuple[dict[str, Any], dict[str, Any]], reload: bool
) -> None:
    objects = Objects()
    document = objects.document([freeze(both[0]), freeze(both[1])])
    if reload:
        document = objects.reloaded(document.root)
    before, after = document.find((0,)), document.find((1,))
    found = list(differences(document, before, after))
    assert bool(found) == (strict(both[0]) != strict(both[1]))
    assert len({path for path, _, _ in found}) == len(found)
    for path, one, other in found:
        assert same(document.find((0, *path)), one)
        assert same(document.find((1, *path)), other)
        assert not same(one, other)


@given(st.lists(VALUES, min_size=1, max_size=200), st.lists(VALUES, min_size=1, max_size=3))
def test_a_list_that_only_grew_is_one_append(items: list[Any], more: list[Any]) -> None:
    document = Objects().document(None)
    [(kind, payload)] = derive(document, freeze(items), freeze(items + more), ("list",))
    assert (kind, payload["path"]) == (APPEND, ["list"])
    assert strict(document.plain(payload["values"])) == strict(more)


def test_equal_branches_are_not_loaded_to_be_compared() -> None:
    objects = Objects()
    wide = {f"key {number}": "x" * 300 for number in range(2_000)}
    one = objects.reloaded(freeze({"wide": wide}))
    other = objects.reloaded(one.set(("wide", "key 7"), "changed").root)
    loaded = []

    def load(digest: Digest) -> bytes:
        loaded.append(digest)
        return objects.contents[digest]

    watched = Document(None, load)
    [(path, _, after)] = differences(watched, one.root, other.root)
    assert (path, after) == (("wide", "key 7"), "changed")
    assert len(loaded) < 12 < len(objects.contents)


def test_a_reference_is_an_object_of_its_own() -> None:
    objects = Objects()
    document = objects.reloaded(freeze({"text": "x" * 10_000, "short": "y"}))
    assert isinstance(document.root["text"], Ref)
    assert document.root["short"] == "y"


@given(st.lists(pairs(), min_size=1, max_size=3), st.booleans())
def test_whole_values_are_what_was_put(
    states: list[tuple[dict[str, Any], dict[str, Any]]], at_the_root: bool
) -> None:
    path = "" if at_the_root else "box"
    with mulligan.open("memory:") as store:
        session = store.session("main")
        for state in (state for pair in states for state in pair):
            own = {f"{key}_": value for key, value in state.items()}  # no component with an API
            session.state.put(path, own)
            assert strict(session.state.get(path)) == strict(own)
        assert strict(store.session("main").state.get(path)) == strict(own)
