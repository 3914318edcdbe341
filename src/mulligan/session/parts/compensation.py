"""Compensation: before a restore, effects after the point are undone, the last one first.

Each undo is a transaction before it and one after it. One that raises stops the restore, with
nothing restored; the next restore goes on with it. After a crash in between, an undo runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import msgspec

from mulligan.document.document import Document
from mulligan.errors import CompensationFailed
from mulligan.failpoints import Failpoint
from mulligan.model import Effect, EffectPlan
from mulligan.session.parts.effects import Effects, said
from mulligan.session.write import ledger
from mulligan.session.write.ledger import COMPENSATED, DONE, IDEMPOTENT, REVERSIBLE
from mulligan.session.write.writer import Writer

UNDO_TIMEOUT_SECONDS = 600.0
"""Time limit of a command that undoes an effect."""


class Compensation:
    """Undoes the effects of one session."""

    def __init__(self, writer: Writer, effects: Callable[[], Effects]) -> None:
        self._writer = writer
        self._effects = effects

    def plan(self, then: Document) -> EffectPlan:
        """Return what going back to a document would mean for effects; nothing is changed."""
        now, undos = self._writer.document(), self._effects().undos
        found = ledger.beyond(now, then)
        known = {id: self._effects().get(id) for id in found}
        undone = [id for id, record in found.items() if _is_undone(record, undos)]
        return EffectPlan(
            compensated=tuple(known[id] for id in reversed(undone)),
            left_behind=tuple(known[id] for id in ledger.left_behind(now, then, undos)),
            repeatable=tuple(known[id] for id, r in found.items() if r["kind"] == IDEMPOTENT),
        )

    def prepare(self, then: Document, *, accept: bool) -> None:
        """Undo what can be undone after a document; raises ``LeftBehind`` for the rest.

        Nothing is undone unless all of it can be, or is accepted.
        """
        if not accept:
            now = self._writer.document()
            ledger.refuse_left_behind(now, then, self._effects().undos)
        for effect in self.plan(then).compensated:
            self._undo(effect)

    def _undo(self, effect: Effect) -> None:
        # Written first: after a crash from here on, the journal says that the undo may have run.
        self._write("effect.compensating", effect.id, {})
        self._writer.engine.failpoint(Failpoint.COMPENSATION_NOTED)
        try:
            self._run(effect)
        except Exception as error:
            self._write("effect.undo_failed", effect.id, {"error": said(error)})
            raise CompensationFailed(
                f"The undo of {effect.name!r} ({effect.id}) failed: {said(error)}."
            ) from error
        self._writer.engine.failpoint(Failpoint.COMPENSATION_RAN)
        self._write("effect.compensated", effect.id, {"status": COMPENSATED, "error": None})
        self._writer.engine.failpoint(Failpoint.COMPENSATION_RECORDED)

    def _run(self, effect: Effect) -> None:
        undo = self._effects().undos.get(effect.name)
        if undo is not None:
            undo(effect)
        else:
            assert isinstance(effect.undo, list)  # noqa: S101 -- else it is not in the plan
            _run_command(effect.undo, effect)

    def _write(self, kind: str, id: str, fields: dict[str, Any]) -> None:
        def decide(work: Any) -> None:
            record = ledger.find(work.document, id)
            if record is None:
                return
            work.add(ledger.effect_change(kind, id, record, fields))
            if fields.get("status") == COMPENSATED:
                for change in ledger.returned_changes(work.document, id, record["name"]):
                    work.add(change)

        self._writer.commit(decide)


def _is_undone(record: ledger.Record, undos: Container[str]) -> bool:
    is_reversible = record["kind"] == REVERSIBLE and record["status"] == DONE
    return is_reversible and not ledger.needs_acceptance(record, undos)


def _run_command(command: list[str], effect: Effect) -> None:
    """Run an undo that is a command; the effect is its standard input, as JSON."""
    import subprocess  # slow to import, and few programs need it

    done = subprocess.run(
        command,
        input=msgspec.json.encode(effect),
        capture_output=True,
        check=False,
        timeout=UNDO_TIMEOUT_SECONDS,
    )
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"exit code {done.returncode}{': ' + told[0] if told else ''}")
