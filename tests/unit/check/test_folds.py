"""Verify finds a fold that does not tell the truth."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mulligan import Session, Store
from mulligan.document.document import settle_root
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.journal.kv_transaction import KvTransaction
from mulligan.journal.records import PLACE, encode_fold
from mulligan.model import Digest, Fold, ObjectKind
from mulligan.upkeep.space.fold import fold_session

NUMBER = 1


@pytest.fixture
def folded(store: Store) -> Store:
    """A store whose session has a fold of #2 to #20, and a pruned checkpoint at #32."""
    session = store.session("run")
    write(session, 30)
    session.checkpoint()
    write(session, 500)  # so that there is a keyframe after the fold
    session.checkpoint()
    engine = store._engine
    with engine.write(session=NUMBER) as txn:
        txn.prune(NUMBER, [32])
    with engine.read() as view:
        fold_session(engine, view.session(NUMBER), 21)
    assert store.verify(full=True).problems == ()
    return store


def write(session: Session, count: int) -> None:
    with session.batch():
        for number in range(count):
            session.state.set("memory/count", number)


def forge(engine: Engine, change: Callable[[KvTransaction, Fold], None]) -> None:
    with engine.write(session=NUMBER) as txn:
        assert isinstance(txn, KvTransaction)
        [fold] = txn.folds(NUMBER)
        change(txn, fold)


def put(txn: KvTransaction, fold: Fold, last: int | None = None) -> None:
    """Write a record of a fold without any check."""
    txn._put("folds", PLACE.pack(NUMBER, last or fold.last), encode_fold(fold))


def problems(store: Store, *, full: bool = False) -> list[str]:
    return [f"{one.where}: {one.detail}" for one in store.verify(full=full).problems]


def other_document(txn: KvTransaction) -> Digest:
    found = txn.keyframe(NUMBER, txn.head(NUMBER).seq)
    assert found is not None
    return found[1]


def test_a_wrong_hash(folded: Store) -> None:
    forge(
        folded._engine,
        lambda txn, fold: put(txn, msgspec.structs.replace(fold, hash=bytes(32))),
    )
    assert any("#21" in one and "chain" in one for one in problems(folded))


def test_a_keyframe_that_is_not_the_one_in_the_index(folded: Store) -> None:
    forge(
        folded._engine,
        lambda txn, fold: put(txn, msgspec.structs.replace(fold, keyframe=other_document(txn))),
    )
    assert any("fold #2 to #20" in one and "index" in one for one in problems(folded))


def test_a_keyframe_that_does_not_lead_to_the_next_one(folded: Store) -> None:
    other = folded.session("other")
    other.state.set("memory/other", True)
    engine = folded._engine
    with engine.pin(), engine.read() as view:
        document = document_at(view, NUMBER + 1, other.head.seq, engine.load)
        bundle = engine.bundle()
        digest = settle_root(document.root, lambda data: bundle.put(ObjectKind.VALUE, data))
        with engine.write(bundle, session=NUMBER) as txn:
            assert isinstance(txn, KvTransaction)
            [fold] = txn.folds(NUMBER)
            put(txn, msgspec.structs.replace(fold, keyframe=digest))
            txn.put_keyframe(NUMBER, fold.last, digest)
    assert problems(folded) == []
    assert any("not the state" in one for one in problems(folded, full=True))


def test_a_missing_keyframe(folded: Store) -> None:
    digest = Digest(bytes(32))

    def change(txn: KvTransaction, fold: Fold) -> None:
        put(txn, msgspec.structs.replace(fold, keyframe=digest))
        txn.put_keyframe(NUMBER, fold.last, digest)

    forge(folded._engine, change)
    for full in (False, True):
        assert any(
            digest.hex() in one and "fold #2 to #20" in one for one in problems(folded, full=full)
        )


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (1, 20, "no fold can be"),
        (5, 20, "event #2: Event #2 of session 'run' is missing"),
        (2, 25, "still has a record"),
        (2, 15, "event #16"),
    ],
)
def test_a_wrong_range(folded: Store, first: int, last: int, said: str) -> None:
    def change(txn: KvTransaction, fold: Fold) -> None:
        txn._writer.delete("folds", PLACE.pack(NUMBER, fold.last))
        put(txn, msgspec.structs.replace(fold, first=first), last)

    forge(folded._engine, change)
    assert any(said in one for one in problems(folded)), problems(folded)


def test_times_in_the_wrong_order(folded: Store) -> None:
    def change(txn: KvTransaction, fold: Fold) -> None:
        [event] = txn.events(NUMBER, 1, 1)
        early = event.time.replace(year=event.time.year - 1)
        put(txn, msgspec.structs.replace(fold, ended=early))

    forge(folded._engine, change)
    assert any("starts later than it ends" in one for one in problems(folded))


def test_a_record_inside_of_a_fold(folded: Store) -> None:
    forge(folded._engine, lambda txn, _: txn._put("pruned", PLACE.pack(NUMBER, 9), bytes(16)))
    assert any("#9" in one and "'pruned'" in one for one in problems(folded))


def test_a_pruned_checkpoint_that_leads_nowhere(folded: Store) -> None:
    forge(folded._engine, lambda txn, _: txn._put("pruned", PLACE.pack(NUMBER, 40), bytes(16)))
    assert any("pruned checkpoint #40" in one for one in problems(folded))
