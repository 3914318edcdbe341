"""Verify: read everything in the store, cross-check it, and name what is broken.

Two truths are checked on their own (every hash chain, every object's digest) and every index
against them: heads, checkpoints, ids, labels, keyframes, the index of objects, pack lengths.
"""

from __future__ import annotations

from collections.abc import Callable

from mulligan.check.findings import Findings
from mulligan.check.objects import ObjectCheck
from mulligan.check.sessions import Graph, SessionCheck
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.journal.protocol import ALL_TABLES, TABLES, View
from mulligan.model import Report, SessionRecord

Progress = Callable[[str], None]


def verify(engine: Engine, *, full: bool, progress: Progress = lambda _: None) -> Report:
    """Check a whole store within one snapshot of its journal; never raises for damage."""
    findings = Findings()
    _check_pages(engine, findings)
    counts = []
    ids: set[str] = set()
    with engine.read() as view:
        stored = ObjectCheck(view, engine.objects, findings, full)
        stored.check(progress)
        graph = Graph(engine, findings, full)
        for record in _records(view, findings):
            progress(f"session {record.name}")
            session = SessionCheck(engine, view, record, findings, graph, full)
            session.check()
            counts.append(session.counts)
            ids |= session.ids
        _check_strangers(view, findings, ids)
    return Report(
        full=full,
        sessions=len(counts),
        events=sum(count[0] for count in counts),
        checkpoints=sum(count[1] for count in counts),
        keyframes=sum(count[2] for count in counts),
        objects=stored.objects,
        packs=stored.packs,
        unreferenced_bytes=stored.unreferenced,
        problems=tuple(findings.problems),
        warnings=tuple(findings.warnings),
    )


def _check_pages(engine: Engine, findings: Findings) -> None:
    """Report the tables of the journal with damaged pages; they are not read any further."""
    damage, lost = engine.journal.examine()
    for name, detail in damage.items():
        where = "data.mdb" if name == ALL_TABLES else name
        findings.report("journal", f"table {name!r}" if name in TABLES else where, detail)
    findings.refuse(damage if ALL_TABLES not in damage else TABLES)
    if lost:
        commits = "commit" if lost == 1 else "commits"
        copy = f"it is an older copy: it lacks the last {lost} acknowledged {commits}"
        copy += "; if it was put back on purpose, delete journal/clean"
        findings.report("journal", "data.mdb", copy)


def _check_strangers(view: View, findings: Findings, ids: set[str]) -> None:
    """Report entries of store-wide indexes that lead to nothing."""
    if not findings.can_read("sessions", "heads", "events", "ids", "names"):
        return
    try:
        for identity, _, seq in view.checkpoints_by_id(""):
            if identity not in ids:
                findings.report("index", f"id {identity}", f"there is no such checkpoint at #{seq}")
        records = {record.name: record.number for record in _records(view, findings)}
        for name, number in view.names().items():
            if records.get(name) != number:
                findings.report("index", f"name {name!r}", "there is no such session")
    except MulliganError as error:
        findings.report("journal", "indexes", error)


def _records(view: View, findings: Findings) -> list[SessionRecord]:
    if not findings.can_read("sessions"):
        return []
    try:
        return view.sessions()
    except MulliganError as error:
        findings.report("journal", "table 'sessions'", error)
        return []
