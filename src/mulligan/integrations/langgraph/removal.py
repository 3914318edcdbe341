"""Removing checkpoints of threads, without what the remaining ones are built from."""

from __future__ import annotations

from mulligan.integrations.langgraph.history import needed_by
from mulligan.integrations.langgraph.layout import Record
from mulligan.integrations.langgraph.thread import Thread
from mulligan.integrations.langgraph.values import ValueCodec
from mulligan.store import Store

CALL = ":"
"""What is between the name of a subgraph and the id of a task in a namespace."""


def keep_latest(store: Store, thread: Thread, codec: ValueCodec) -> None:
    """Remove all checkpoints but the latest of each namespace, and what these are built from.

    Those of subgraphs that were called for an earlier checkpoint go with it.
    """
    latest: dict[str, Record] = {}
    records = [record for record, _ in thread.records()]
    for record in records:
        latest.setdefault(record.namespace, record)
    outer = {record.id for record in records if not record.namespace}
    over = outer - {latest[""].id} if outer else set()
    kept = [record for record in latest.values() if _caller(record, codec) not in over]
    _remove_all_but(store, thread, records, kept, codec)


def _caller(record: Record, codec: ValueCodec) -> str | None:
    """Return the checkpoint of the outermost graph for which a subgraph was called.

    The namespace of a call has the id of its task. One without is that of a subgraph that keeps
    its state between calls (``checkpointer=True``).
    """
    if CALL not in record.namespace:
        return None
    parents = codec.decode(record.metadata).get("parents") or {}
    caller: str | None = parents.get("")
    return caller


def remove_runs(store: Store, thread: Thread, runs: set[str], codec: ValueCodec) -> None:
    """Remove the checkpoints of runs, but not what the remaining ones are built from."""
    records = [record for record, _ in thread.records()]
    kept = [r for r in records if str(codec.decode(r.metadata).get("run_id")) not in runs]
    _remove_all_but(store, thread, records, kept, codec)


def _remove_all_but(
    store: Store, thread: Thread, records: list[Record], kept: list[Record], codec: ValueCodec
) -> None:
    stay = {(record.namespace, record.id) for record in kept}
    for record in kept:
        stay |= {(record.namespace, id) for id in needed_by(thread, record, codec)}
    doomed = [record for record in records if (record.namespace, record.id) not in stay]
    if doomed:
        thread.remove(store, doomed)
