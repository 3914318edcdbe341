"""Verify: read everything in the store, cross-check it, and name what is broken.

Two truths are checked on their own (every hash chain, every object's digest) and every index
against them: heads, checkpoints, ids, labels, keyframes, the index of objects, the
lengths of areas.
"""

from __future__ import annotations

from collections.abc import Callable

from mulligan import codec
from mulligan.check.bodies import BodyCheck, OnRead, Sample
from mulligan.check.findings import About, Findings
from mulligan.check.graph import Graph
from mulligan.check.objects import ObjectCheck
from mulligan.check.purges import PurgeCheck
from mulligan.check.sessions import SessionCheck
from mulligan.engine import Engine
from mulligan.errors import DamageError, MulliganError
from mulligan.journal.copies import copied_events
from mulligan.journal.protocol import ALL_TABLES, STORE_SCOPE, TABLES, View
from mulligan.model import Digest, EventsCopied, ObjectKind, Report, SessionRecord
from mulligan.timeline.losses import lost_objects

Progress = Callable[[str], None]


def verify(
    engine: Engine,
    *,
    full: bool,
    sample: Sample | None = None,
    progress: Progress = lambda _: None,
    on_read: OnRead = lambda _: None,
) -> Report:
    """Check a whole store; never raises for damage.

    The structure is always checked, within one snapshot of the journal. With ``full``, states are
    replayed, every value is decoded and all stored bytes are read; with ``sample``, a random part
    of the stored bytes.
    """
    findings = Findings()
    # Pages first: reading a damaged table could crash the process.
    _check_pages(engine, findings)

    def length_now(area: int) -> int:
        with engine.read() as newest:
            return newest.area_length(area)

    counts = []
    ids: set[str] = set()
    # One snapshot: what others write during the check is not taken for damage. Pinned before it,
    # so that everything that it leads to stays.
    with engine.pin(), engine.read() as view:
        stored = ObjectCheck(view, engine.objects, findings, length_now)
        stored.check(progress)
        graph = Graph(engine, findings, full, _known_losses(engine, view))
        for record in _records(view, findings):
            progress(f"session {record.name}")
            session = SessionCheck(engine, view, record, findings, graph, full)
            session.check()
            counts.append(session.counts)
            ids |= session.ids
        graph.follow_bases()
        _check_store_indexes(view, findings, ids)
        PurgeCheck(engine, view, findings).check()
        _check_copies(engine, view, findings, full=full)
        known = set() if full else _report_noted(engine, view, findings)
    bodies = BodyCheck(engine, stored, findings, known)
    if full or sample is not None:
        picks = True if sample is None else sample.picks(stored.groups)
        bodies.check(picks, progress, on_read)
    return Report(
        full=full,
        sessions=len(counts),
        events=sum(count[0] for count in counts),
        checkpoints=sum(count[1] for count in counts),
        keyframes=sum(count[2] for count in counts),
        objects=stored.objects,
        packs=stored.areas,
        unreferenced_bytes=stored.unreferenced,
        stored_bytes=sum(stored.readable.values()),
        read_bytes=bodies.read_bytes,
        sample=None if sample is None else sample.fraction,
        seed=None if sample is None else sample.seed,
        problems=tuple(findings.problems),
        warnings=tuple(findings.warnings),
    )


def _check_pages(engine: Engine, findings: Findings) -> None:
    """Report the tables of the journal with damaged pages; they are not read any further."""
    examined = engine.journal.examine()
    damage, lost, storage = examined.damage, examined.lost, examined.storage
    for name, detail in damage.items():
        where = storage if name == ALL_TABLES else name
        shown = f"table {name!r}" if name in TABLES else where
        findings.report("table", shown, detail, table=name)
    findings.refuse(damage if ALL_TABLES not in damage else TABLES)
    if lost:
        commits = "commit" if lost == 1 else "commits"
        copy = f"it is an older copy: it lacks the last {lost} acknowledged {commits}"
        if examined.accept_hint:
            copy += f"; if it was put back on purpose, {examined.accept_hint}"
        findings.report("older", storage, copy)


def _check_store_indexes(view: View, findings: Findings, ids: set[str]) -> None:
    """Report entries of store-wide indexes that lead to nothing."""
    if not findings.can_read("sessions", "heads", "events", "ids", "names"):
        return
    try:
        for identity, session, seq in view.checkpoints_by_id(""):
            if identity not in ids:
                where, detail = f"id {identity}", f"there is no such checkpoint at #{seq}"
                findings.report("index", where, detail, table="ids", session=session, seq=seq)
        records = {record.name: record.number for record in _records(view, findings)}
        for name, number in view.names().items():
            if records.get(name) != number:
                where, detail = f"name {name!r}", "there is no such session"
                findings.report("index", where, detail, table="names", session=number)
        if findings.can_read("keys"):
            _check_session_keys(view, findings)
    except MulliganError as error:
        findings.report("table", "indexes", error, table="ids")


def _check_session_keys(view: View, findings: Findings) -> None:
    """Report foreign keys of sessions that find another session, or none."""
    records = _records(view, findings)
    carried = {(codec.key_digest(r.key), r.number) for r in records if r.key is not None}
    listed = set(view.keys(STORE_SCOPE))
    for key, number in sorted(listed ^ carried):
        state = "does not have it" if (key, number) in listed else "is not found by it"
        where, detail = f"key {key.hex()[:16]}", f"session number {number} {state}"
        findings.report("index", where, detail, table="keys", session=number)


def _check_copies(engine: Engine, view: View, findings: Findings, *, full: bool) -> None:
    """Check the copies of events, with ``full`` also what is in them.

    A copy that is missing or wrong is no loss while the events are there.
    """
    if not findings.can_read("copies", "objects"):
        return
    try:
        for copy in view.copies():
            detail = None
            if view.locate(copy.digest) is None:
                detail = "its object is missing"
            elif full and copy.last and findings.can_read("events"):
                detail = _difference(engine, view, copy)
            if detail is not None:
                where = f"copy of events #{copy.first} to #{copy.last}"
                about = About(table="copies", session=copy.session, digest=copy.digest)
                findings.warn("index", where, detail, **about)
    except MulliganError as error:
        findings.report("table", "table 'copies'", error, table="copies")


def _difference(engine: Engine, view: View, copy: EventsCopied) -> str | None:
    """Return how a copy differs from the events of which it is one; folded ones are gone."""
    try:
        data = engine.objects.get(ObjectKind.EVENTS, copy.digest)
        number, copied = copied_events(data)
    except DamageError:
        return None  # its bytes are reported with the objects
    if (number, min(copied), max(copied)) != (copy.session, copy.first, copy.last):
        return "it has other events than the index says"
    first = copy.first
    while first <= copy.last:
        present = view.event_records(number, first, copy.last)
        for seq, record in enumerate(present, first):
            if copied[seq] != record:
                return f"event #{seq} differs from the journal"
        first += len(present) + 1
    return None


def _known_losses(engine: Engine, view: View) -> set[Digest]:
    """Return the objects that a repair recorded as lost."""
    try:
        return lost_objects(view, engine.load)
    except MulliganError:  # the state that names them is damaged itself, and is reported
        return set()


def _report_noted(engine: Engine, view: View, findings: Findings) -> set[Digest]:
    """Report the objects that are noted as damaged; a full check reads them itself."""
    if not findings.can_read("objects", "damaged"):
        return set()
    places = view.locate_all(view.damaged())
    for digest, place in places.items():
        where = f"{engine.objects.area_name(place.area)} at offset {place.offset}"
        findings.report(
            "object",
            f"{digest.hex()} in {where}",
            "it was found damaged earlier, and its content was not stored again since",
            digest=digest,
            area=place.area,
            location=place,
        )
    return {*places}


def damaged_objects(report: Report) -> set[Digest]:
    """Return the objects that a check found damaged or missing where the index says."""
    return {
        found.digest
        for found in report.problems
        if found.digest is not None and found.fault in ("object", "index", "needed")
    }


def note_findings(engine: Engine, report: Report) -> None:
    """Note the damaged objects, so that captures store them again; forget what proved intact.

    A damaged journal is not written to.
    """
    if any(found.fault in ("table", "older") for found in report.problems):
        return
    damaged = damaged_objects(report)
    with engine.read() as view:
        noted = {*view.damaged()}
    # Only a full check has read every object. A failing disk may have recovered since.
    intact = noted - damaged if report.full else set()
    if intact or damaged - noted:
        with engine.write() as txn:
            txn.clear_damaged(intact)
            txn.note_damaged(damaged)


def _records(view: View, findings: Findings) -> list[SessionRecord]:
    if not findings.can_read("sessions"):
        return []
    try:
        return view.sessions()
    except MulliganError as error:
        findings.report("table", "table 'sessions'", error, table="sessions")
        return []
