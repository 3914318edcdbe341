"""The conformance suite of object stores.

Subclass :class:`ObjectsSuite` in a test module, give it an ``objects`` fixture, and override
``commit`` when entries must reach an index before they can be found::

    class TestMyObjects(ObjectsSuite):
        @pytest.fixture
        def objects(self, tmp_path):
            self.index = MemoryIndex()
            return MyObjects(tmp_path, self.index.locate)

        def commit(self, flushed):
            self.index.commit(flushed)
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from mulligan import codec
from mulligan.errors import DamageError, MissingObject, StoreClosed, UnstorableValue
from mulligan.model import Digest, Location
from mulligan.objects.protocol import MAX_OBJECT, Flushed, Objects, StoredGroup


class MemoryIndex:
    """What a journal does for an object store, in a dictionary."""

    def __init__(self) -> None:
        self.entries: dict[Digest, Location] = {}
        self.area_lengths: dict[int, int] = {}

    def locate(self, digest: Digest) -> Location | None:
        """Return the location of an object."""
        return self.entries.get(digest)

    def committed(self, area: int) -> int:
        """Return the acknowledged length of an area."""
        return self.area_lengths.get(area, 0)

    def commit(self, flushed: Flushed) -> None:
        """Take in what a bundle flushed; an area's length only ever grows."""
        self.entries.update(flushed.entries)
        for area, length in flushed.area_lengths.items():
            self.area_lengths[area] = max(length, self.committed(area))


def noise(size: int, seed: int = 1) -> bytes:
    """Return bytes that do not compress, the same for the same seed."""
    return random.Random(seed).randbytes(size)


SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "a line": b"the quick brown fox\n",
    "just under a frame": b"ab" * (1 << 19),
    "compressible 5 MB": b"all work and no play makes jack a dull boy\n" * 120_000,
    "incompressible 64 KB": noise(1 << 16),
    "incompressible 5 MB": noise(5_000_000),
}


class ObjectsSuite:
    """What every implementation of ``Objects`` must do; see the module for how to run it."""

    @pytest.fixture
    def objects(self) -> Objects:
        """Return an empty store; every subclass provides its own."""
        raise NotImplementedError("give the suite an `objects` fixture")

    def commit(self, flushed: Flushed) -> None:
        """Make flushed entries findable; nothing to do where ``flush`` does that."""

    def keep(self, objects: Objects, *contents: bytes, kind: int = 1) -> list[Digest]:
        """Put, flush and commit some objects in one bundle."""
        bundle = objects.bundle()
        digests = [bundle.put(kind, data) for data in contents]
        self.commit(bundle.flush())
        return digests

    @pytest.mark.parametrize("name", SAMPLES)
    def test_get_returns_exactly_what_was_put(self, objects: Objects, name: str) -> None:
        """An object of any size is returned byte for byte."""
        [digest] = self.keep(objects, SAMPLES[name])
        assert objects.get(1, digest) == SAMPLES[name]

    def test_all_sizes_share_one_bundle(self, objects: Objects) -> None:
        """Small and large objects can be mixed in one bundle."""
        digests = self.keep(objects, *SAMPLES.values())
        assert [objects.get(1, digest) for digest in digests] == list(SAMPLES.values())

    def test_get_all_returns_every_object_that_exists(self, objects: Objects) -> None:
        """Every object is returned once; missing ones and other kinds are left out."""
        digests = self.keep(objects, *SAMPLES.values(), kind=2)
        other = self.keep(objects, b"of another kind", kind=1)
        missing = codec.digest(2, b"never put")
        found = list(objects.get_all(2, [*digests, missing, *other, *digests]))
        assert len(found) == len(SAMPLES)
        assert dict(found) == dict(zip(digests, SAMPLES.values(), strict=True))
        assert list(objects.get_all(2, [])) == []

    def test_locate_many_has_the_order_of_get_all(self, objects: Objects) -> None:
        """Another process can read the objects at these locations; unknown ones are left out."""
        digests = self.keep(objects, *SAMPLES.values(), kind=2)
        missing = codec.digest(2, b"never put")
        where = objects.locate_many([*digests, missing, *digests])
        if where is not None:
            assert where.source
            named = [digest for digest, _ in where.places]
            assert named == [digest for digest, _ in objects.get_all(2, digests)]
            moved = (missing, where.places[0][1])
            found = list(objects.get_at(2, [*where.places, moved]))
            assert found == list(objects.get_all(2, digests))

    def stored(self, objects: Objects, *, full: bool) -> dict[Digest, Location]:
        """Return every object in the areas with its location; none may be damaged."""
        found: dict[Digest, Location] = {}
        for area in objects.areas():
            end = 0
            for group in objects.enumerate(area, objects.area_size(area), full=full):
                assert isinstance(group, StoredGroup)
                assert group.area == area
                assert group.offset >= end, "they come in order and do not overlap"
                end = group.offset + group.length
                assert [stored.damage for stored in group.objects if stored.damage] == []
                found |= {stored.digest: stored.location for stored in group.objects}
        return found

    def test_an_empty_store_has_no_areas(self, objects: Objects) -> None:
        """There is nothing to verify before the first object."""
        assert objects.areas() == []

    @pytest.mark.parametrize("full", [False, True])
    def test_everything_stored_is_enumerated_where_the_index_has_it(
        self, objects: Objects, full: bool
    ) -> None:
        """Enumerating the areas gives exactly the objects that were put, where ``flush`` said."""
        places: dict[Digest, Location] = {}
        for contents in ([*SAMPLES.values()], [b"later"], [b"later", b"and last"]):
            bundle = objects.bundle()
            for data in contents:
                bundle.put(1, data)
            flushed = bundle.flush()
            self.commit(flushed)
            places |= flushed.entries
            for area, length in flushed.area_lengths.items():
                assert objects.area_size(area) >= length
        assert self.stored(objects, full=full) == places
        assert {place.area for place in places.values()} <= {*objects.areas()}
        for area in objects.areas():
            assert not objects.is_foreign(area)
            assert objects.area_name(area)

    def test_an_area_is_enumerated_up_to_where_it_was_acknowledged(self, objects: Objects) -> None:
        """Bytes past it are not part of the store; their values can be listed."""
        bundle = objects.bundle()
        kept = bundle.put(1, b"acknowledged")
        flushed = bundle.flush()
        self.commit(flushed)
        [(area, end)] = flushed.area_lengths.items()
        late = objects.bundle()
        late.put(1, b"not acknowledged")
        late.put(2, b"of another kind")
        late.flush()
        groups = list(objects.enumerate(area, end, full=True))
        assert [s.digest for g in groups if isinstance(g, StoredGroup) for s in g.objects] == [kept]
        assert list(objects.values_after(area, end)) == [b"not acknowledged"]
        assert objects.area_size(area) > end

    def test_the_digest_is_the_one_of_the_codec(self, objects: Objects) -> None:
        """The identity of an object does not depend on the store it is in."""
        [digest] = self.keep(objects, b"hello", kind=3)
        assert digest == codec.digest(3, b"hello")

    def test_put_is_idempotent_within_a_bundle(self, objects: Objects) -> None:
        """The same object twice in a bundle is one object."""
        bundle = objects.bundle()
        assert bundle.put(1, b"same") == bundle.put(1, b"same")
        assert len(bundle.flush().entries) == 1

    def test_a_large_object_put_twice_costs_once(self, objects: Objects) -> None:
        """An object that a bundle has written out already is not written again."""
        bundle = objects.bundle()
        assert bundle.put(1, noise(2_000_000)) == bundle.put(1, noise(2_000_000))
        assert 2_000_000 <= bundle.flush().size < 2_100_000

    def test_flush_is_idempotent(self, objects: Objects) -> None:
        """A second flush returns the same and writes nothing."""
        bundle = objects.bundle()
        bundle.put(1, b"once")
        first = bundle.flush()
        assert bundle.flush() == first
        assert first.entries

    def test_a_bundle_can_be_used_after_flush(self, objects: Objects) -> None:
        """The next flush returns the objects put since, and all earlier ones."""
        bundle = objects.bundle()
        one = bundle.put(1, b"one")
        bundle.flush()
        two = bundle.put(1, b"two")
        flushed = bundle.flush()
        self.commit(flushed)
        assert set(flushed.entries) == {one, two}
        assert (objects.get(1, one), objects.get(1, two)) == (b"one", b"two")

    def test_an_empty_bundle_flushes_to_nothing(self, objects: Objects) -> None:
        """Without objects, nothing is written."""
        assert objects.bundle().flush() == Flushed({}, {}, 0)

    def test_known_objects_are_not_written_again(self, objects: Objects) -> None:
        """A bundle of objects that the store holds costs no bytes."""
        self.keep(objects, *SAMPLES.values())
        bundle = objects.bundle()
        for data in SAMPLES.values():
            bundle.put(1, data)
        assert bundle.flush() == Flushed({}, {}, 0)

    def test_only_the_new_objects_of_a_bundle_are_written(self, objects: Objects) -> None:
        """Entries name what is new, and size what it cost."""
        self.keep(objects, noise(50_000))
        bundle = objects.bundle()
        bundle.put(1, noise(50_000))
        new = bundle.put(1, b"new")
        flushed = bundle.flush()
        assert set(flushed.entries) == {new}
        assert 0 < flushed.size < 1_000

    def test_the_kind_is_part_of_the_identity(self, objects: Objects) -> None:
        """The same bytes under two kinds are two objects."""
        [one] = self.keep(objects, b"same bytes", kind=1)
        [two] = self.keep(objects, b"same bytes", kind=2)
        assert one != two
        assert objects.get(1, one) == objects.get(2, two) == b"same bytes"

    def test_an_object_is_not_found_under_another_kind(self, objects: Objects) -> None:
        """Reading an object as another kind is an error, in a bundle too."""
        bundle = objects.bundle()
        digest = bundle.put(1, b"of kind one")
        with pytest.raises(DamageError, match=digest.hex()):
            bundle.get(2, digest)
        self.commit(bundle.flush())
        with pytest.raises(DamageError, match=digest.hex()):
            objects.get(2, digest)

    def test_a_missing_object_is_named(self, objects: Objects) -> None:
        """The error says which object is missing, from a store and from a bundle."""
        absent = codec.digest(1, b"never put")
        assert not objects.has(absent)
        with pytest.raises(MissingObject, match=absent.hex()):
            objects.get(1, absent)
        with pytest.raises(MissingObject, match=absent.hex()):
            objects.bundle().get(1, absent)

    def test_a_bundle_sees_its_own_objects(self, objects: Objects) -> None:
        """Before and after flush, small or large, a bundle returns what was put into it."""
        bundle = objects.bundle()
        digests = [bundle.put(1, data) for data in SAMPLES.values()]
        assert [bundle.get(1, digest) for digest in digests] == list(SAMPLES.values())
        bundle.flush()
        assert [bundle.get(1, digest) for digest in digests] == list(SAMPLES.values())

    def test_a_bundle_sees_the_store(self, objects: Objects) -> None:
        """A bundle returns objects that were there before it."""
        [digest] = self.keep(objects, b"older")
        assert objects.bundle().get(1, digest) == b"older"

    def test_nothing_is_visible_before_commit(self, objects: Objects) -> None:
        """Neither the store nor another bundle sees an object before its bundle is committed."""
        bundle = objects.bundle()
        digests = [bundle.put(1, data) for data in SAMPLES.values()]
        assert not any(objects.has(digest) for digest in digests)
        for digest in digests:
            with pytest.raises(MissingObject):
                objects.bundle().get(1, digest)
        self.commit(bundle.flush())
        assert all(objects.has(digest) for digest in digests)

    def test_an_abandoned_bundle_leaves_nothing(self, objects: Objects) -> None:
        """A bundle that is dropped does not harm the next one."""
        dropped = objects.bundle().put(1, noise(3_000_000, seed=7))
        [kept] = self.keep(objects, b"kept")
        assert objects.get(1, kept) == b"kept"
        assert not objects.has(dropped)

    def test_two_bundles_may_hold_the_same_object(self, objects: Objects) -> None:
        """After both commits, in any order, the object is stored and intact."""
        first, second = objects.bundle(), objects.bundle()
        digest = first.put(1, b"twin")
        assert second.put(1, b"twin") == digest
        self.commit(second.flush())
        self.commit(first.flush())
        assert objects.get(1, digest) == b"twin"

    def test_a_changed_buffer_does_not_change_the_object(self, objects: Objects) -> None:
        """The object has the bytes of the buffer at the time of the call."""
        buffer = bytearray(b"before")
        bundle = objects.bundle()
        digest = bundle.put(1, buffer)  # type: ignore[arg-type]
        buffer[:] = b"after!"
        self.commit(bundle.flush())
        assert objects.get(1, digest) == b"before"

    def test_an_object_above_the_limit_is_refused(self, objects: Objects) -> None:
        """More than ``MAX_OBJECT`` bytes are refused before anything is written."""
        with pytest.raises(UnstorableValue, match=str(MAX_OBJECT)):
            objects.bundle().put(1, bytes(MAX_OBJECT + 1))

    def test_many_objects(self, objects: Objects) -> None:
        """Thousands of objects in one bundle can be read in any order."""
        contents = [b"object %d " % number * (number % 90) for number in range(5_000)]
        digests = self.keep(objects, *contents)
        order = list(range(len(contents)))
        random.Random(5).shuffle(order)
        wrong = [n for n in order if objects.get(1, digests[n]) != contents[n]]
        assert wrong == []

    def test_threads_write_and_read_at_once(self, objects: Objects) -> None:
        """Bundles of several threads are independent."""
        shared = [noise(2_000, seed=number) for number in range(50)]

        def work(thread: int) -> list[tuple[Digest, bytes]]:
            kept: list[tuple[Digest, bytes]] = []
            for number in range(10):
                own = b"%d/%d " % (thread, number) * 20_000
                contents = [own, shared[(thread + number) % 50]]
                kept += zip(self.keep(objects, *contents), contents, strict=True)
            return [(digest, data) for digest, data in kept if objects.get(1, digest) != data]

        with ThreadPoolExecutor(8) as pool:
            wrong = [bad for result in pool.map(work, range(8)) for bad in result]
        assert wrong == []

    def test_freed_stretches_lose_their_objects_and_no_others(self, objects: Objects) -> None:
        places: dict[Digest, Location] = {}
        for seed in range(6):
            bundle = objects.bundle()
            bundle.put(1, noise(20_000, seed))
            flushed = bundle.flush()
            self.commit(flushed)
            places |= flushed.entries
        digests = [codec.digest(1, noise(20_000, seed)) for seed in range(6)]
        before = sum(objects.area_usage(area) for area in objects.areas())
        for digest in digests[::2]:
            place = places[digest]
            freed = objects.free(place.area, [(place.offset, place.length)])
            if freed is None:
                return  # its storage cannot be released in parts
        for seed, digest in enumerate(digests):
            if seed % 2:
                assert objects.get(1, digest) == noise(20_000, seed)
            else:
                with pytest.raises(DamageError):
                    objects.get(1, digest)
        assert sum(objects.area_usage(area) for area in objects.areas()) < before

    def test_a_copy_is_at_its_new_location_and_the_old_one_still_works(
        self, objects: Objects
    ) -> None:
        bundle = objects.bundle()
        digests = [bundle.put(1, noise(3_000, seed)) for seed in range(5)]
        flushed = bundle.flush()
        self.commit(flushed)
        places = []
        for place in sorted({*flushed.entries.values()}, key=lambda p: (p.offset, p.slot)):
            entries = objects.entries_at(place, -1)
            if entries is None:
                return  # every object is stored by itself, so there is nothing to copy
            places.append((entries[place.slot], place))
        copied = objects.copy(places)
        assert {*copied.moves} == {*digests}
        moved = [(digest, new) for digest, (_, new) in copied.moves.items()]
        assert dict(objects.get_at(1, moved)) == {d: objects.get(1, d) for d in digests}
        for digest, (old, new) in copied.moves.items():
            assert old == flushed.entries[digest]
            assert new.offset + new.length <= copied.area_lengths[new.area]

    def test_contents_has_everything_until_it_is_erased(self, objects: Objects) -> None:
        """Also what no index leads to; erased bytes are gone from it."""
        erased, kept = noise(3_000), b"all work and no play " * 1_000
        self.keep(objects, erased)
        self.keep(objects, kept)
        [area] = objects.areas()
        everything = b"".join(objects.contents(area))
        assert erased in everything
        assert kept in everything
        [first, *_] = objects.enumerate(area, objects.area_size(area), full=False)
        objects.free(area, [(first.offset, first.length)], erase=True)
        everything = b"".join(objects.contents(area))
        assert erased not in everything
        assert kept in everything

    def test_a_closed_store_refuses(self, objects: Objects) -> None:
        """After ``close``, which may be called twice, neither reading nor writing is possible."""
        [digest] = self.keep(objects, b"content")
        open_bundle = objects.bundle()
        open_bundle.put(1, b"late")
        objects.close()
        objects.close()
        with pytest.raises(StoreClosed):
            objects.get(1, digest)
        with pytest.raises(StoreClosed):
            objects.bundle()
        with pytest.raises(StoreClosed):
            open_bundle.flush()
