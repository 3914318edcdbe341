"""Admission of an effect: what follows for a call from the record that its intent has.

The decision on one record, inside of a transaction; ``docs/design/0007-effects.md`` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from mulligan.document.document import Document
from mulligan.model import EffectKind, EffectRule, Repeat, Stakes
from mulligan.session.write import ledger
from mulligan.session.write.ledger import (
    APPROVED,
    DENIED,
    DONE,
    IDEMPOTENT,
    IN_DOUBT,
    INTENDED,
)
from mulligan.session.write.writer import Work

BY_RULE, BY_TIMEOUT = "rule", "timeout"
NO_PERSON = (BY_RULE, BY_TIMEOUT)
"""Who answered a question when it was no person; such an answer does not last."""

Check = Callable[[Any], Any]
"""Asks the outside world about an intent: None if it cannot tell, False if it did not happen, or
else the result."""

Verdict = Literal["settled", "act", "ready", "pending", "denied", "doubt", "repeated", "busy"]
"""What follows for a call from the record that its intent has."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a call wants done, after a check of its arguments."""

    name: str
    intent: Any
    kind: EffectKind
    stakes: Stakes
    key: str | None
    undo: list[str] | bool
    check: Check | None
    repeat: Repeat | None
    wait: float


class Found(msgspec.Struct, frozen=True):
    """The record of an intent after a transaction, and what follows from it."""

    verdict: Verdict
    id: str
    record: dict[str, Any]


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A call that wants an effect: what it wants, and which record that has.

    ``token`` names the process and the handle that act; ``is_abandoned`` whether the call that
    a record names acts no more.
    """

    wanted: Wanted
    rule: EffectRule
    id: str
    identity: str
    agent: str
    task: str | None
    token: str
    is_abandoned: Callable[[Mapping[str, Any]], bool]

    @property
    def takes_checkpoint(self) -> bool:
        """Whether a checkpoint is taken before the act; by default, where approval is asked."""
        if self.rule.checkpoint is not None:
            return self.rule.checkpoint
        return self.rule.approval == "ask"

    def decide(self, work: Work, now: datetime, *, may_act: bool) -> Found:
        """Decide on the newest record of the intent; without ``may_act``, short of acting."""
        document, id = work.document, self.id
        record = ledger.find(document, id)
        if record is None and self.wanted.key is None:
            id, record = self._beyond(document) or (id, None)
        return self._follow(work, id, record, now, may_act=may_act)

    def _follow(
        self, work: Work, id: str, record: dict[str, Any] | None, now: datetime, *, may_act: bool
    ) -> Found:
        """Return what follows from a record, and write it down."""
        if record is None:
            return self._intend(work, id, None, now, may_act=may_act)
        status = record["status"]
        if status == DONE:
            return self._done(work, id, record, now, may_act=may_act)
        # Before everything else that is open: a call whose process died may have happened, and only
        # an idempotent one may simply be made again.
        if status == IN_DOUBT or self.is_abandoned(record):
            if record["kind"] == IDEMPOTENT:
                return self._intend(work, id, record, now, may_act=may_act)
            if status != IN_DOUBT:
                fields = {"status": IN_DOUBT}
                work.add(ledger.effect_change("effect.in_doubt", id, record, fields))
            return Found("doubt", id, {**record, "status": IN_DOUBT})
        if ledger.is_under_way(record):
            return Found("busy", id, record)
        if status == APPROVED:
            return self._consume(work, id, record, may_act=may_act)
        if status == INTENDED:
            return _asked(work, id, record, now)
        if status == DENIED and (record.get("question") or {}).get("by") not in NO_PERSON:
            return Found("denied", id, record)
        return self._intend(work, id, record, now, may_act=may_act)

    def _done(
        self,
        work: Work,
        id: str,
        record: dict[str, Any],
        now: datetime,
        *,
        may_act: bool,
    ) -> Found:
        """Settle an effect; one beyond the point that was restored follows its rule."""
        if not ledger.is_outside(work.document, id):
            return Found("settled", id, record)
        repeat = self.wanted.repeat or self.rule.repeat
        if repeat == "ask":
            return Found("repeated", id, record)
        if repeat == "allow":
            # Under an id of its own: what was done before stays in the ledger.
            again = ledger.intent_id(id, "again")
            known = ledger.find(work.document, again)
            return self._follow(work, again, known, now, may_act=may_act)
        for change in ledger.returned_changes(work.document, id, record["name"]):
            work.add(change)
        return Found("settled", id, record)

    def _intend(
        self,
        work: Work,
        id: str,
        before: dict[str, Any] | None,
        now: datetime,
        *,
        may_act: bool,
    ) -> Found:
        """Put an intent into the ledger: to act at once, to be asked about, or denied."""
        approval = self.rule.approval
        record = self._new(work, before, now)
        if approval == "deny":
            answer = {"at": now, "by": BY_RULE, "answered": now}
            record |= {"status": DENIED, "question": answer}
            return self._write(work, "effect.denied", "denied", id, record)
        if approval == "ask":
            timeout = self.rule.timeout
            expires = None if timeout is None else now + timedelta(seconds=timeout)
            record["question"] = {"at": now, "expires": expires}
            return self._write(work, "approval.asked", "pending", id, record)
        if not may_act:
            return Found("ready", id, record)
        # In the transaction of the intent: a crash from here on leaves a record that names who
        # acted, and the effect is in doubt, never forgotten.
        record["acting"] = self.token
        for change in ledger.returned_changes(work.document, id, self.wanted.name):
            work.add(change)
        return self._write(work, "effect.intended", "act", id, record)

    def _new(self, work: Work, before: dict[str, Any] | None, now: datetime) -> dict[str, Any]:
        wanted = self.wanted
        return {
            "name": wanted.name,
            "kind": wanted.kind,
            "status": INTENDED,
            "intent": wanted.intent,
            "identity": self.identity,
            "fields": None if self.rule.identity is None else list(self.rule.identity),
            "key": wanted.key,
            "agent": self.agent,
            "task": self.task,
            "stakes": wanted.stakes,
            "at": now,
            "seq": work.seq + 1,
            "attempts": 1 + (before or {}).get("attempts", 0),
            "undo": wanted.undo,
        }

    def _write(
        self, work: Work, kind: str, verdict: Verdict, id: str, record: dict[str, Any]
    ) -> Found:
        work.add(ledger.new_change(kind, id, record))
        return Found(verdict, id, record)

    def _consume(self, work: Work, id: str, record: dict[str, Any], *, may_act: bool) -> Found:
        """Use an approval up: from this transaction on, the call acts, and no other ever may."""
        if not may_act:
            return Found("ready", id, record)
        fields = {"acting": self.token, "seq": work.seq + 1, "agent": self.agent}
        work.add(ledger.effect_change("effect.intended", id, record, fields))
        return Found("act", id, {**record, **fields})

    def _beyond(self, document: Document) -> tuple[str, dict[str, Any]] | None:
        """Return the oldest effect beyond the point that has the same intent."""
        for id, told in ledger.outside(document).items():
            if told.get("name") == self.wanted.name and told.get("identity") == self.identity:
                record = ledger.find(document, id)
                if record is not None and record["status"] in (DONE, IN_DOUBT):
                    return id, record
        return None


def is_expired(record: Mapping[str, Any], now: datetime) -> bool:
    """Whether a question had no answer before its deadline."""
    question = record.get("question") or {}
    is_open = record.get("status") == INTENDED and record.get("acting") is None
    expires = question.get("expires")
    return is_open and expires is not None and expires <= now


def _asked(work: Work, id: str, record: dict[str, Any], now: datetime) -> Found:
    """Return what follows for an effect that was asked about and has no answer."""
    if not is_expired(record, now):
        return Found("pending", id, record)
    answer = {**record["question"], "by": BY_TIMEOUT, "answered": now}
    fields = {"status": DENIED, "question": answer}
    work.add(ledger.effect_change("approval.denied", id, record, fields))
    return Found("denied", id, {**record, **fields})
