"""Effects: acts on the outside world, written down before they happen and never repeated silently.

``docs/design/0007-effects.md`` draws the statuses and the transactions between them. A call finds
its record by its intent, so that a program that starts again, is rolled back, or continues in a
fork meets what was done before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self, get_args

import msgspec

from mulligan.decoding import ready
from mulligan.document.document import Document
from mulligan.document.fold import Change
from mulligan.document.values import freeze
from mulligan.errors import (
    ApprovalPending,
    Conflict,
    EffectDenied,
    EffectInDoubt,
    EffectRepeated,
    InvalidEffect,
    UnknownEffect,
)
from mulligan.failpoints import Failpoint
from mulligan.model import Effect, EffectKind, EffectPlan, EffectRule, Repeat, Stakes
from mulligan.session import arguments, effect_rules
from mulligan.session.occurrences import Scope
from mulligan.session.parts.admission import Admission, Check, Found, Wanted, is_expired
from mulligan.session.write import leases, ledger
from mulligan.session.write.ledger import (
    DENIED,
    DONE,
    FAILED,
    IN_DOUBT,
    REVERSIBLE,
)
from mulligan.session.write.writer import Work, Writer
from mulligan.timeline.points import PointLike

MAX_NAME = 200
"""The longest name of a step, of an effect and of a tool, in characters."""

MAX_KEY = 500
"""The longest key of an effect, in characters."""

POLL_SECONDS = 0.2
"""How often a wait for an answer looks again."""

Undo = Callable[[Effect], Any]
"""Compensates an effect. It may run twice, after a crash."""

_FIELDS = frozenset(Effect.__struct_fields__) - {"id", "status"}


class ActiveEffect:
    """An effect in a ``with`` block: the intent is durable inside, the outcome after it.

    ``settled`` says that it was done before: ``result`` is then the recorded one, and the block
    must not act. Otherwise, act as ``intent`` says, which a person may have edited, and set
    ``result``. An exception makes the effect failed; a crash, or being cancelled, leaves it in
    doubt.
    """

    def __init__(self, effects: Effects, wanted: Wanted) -> None:
        self._effects = effects
        self._wanted = wanted
        self._result: Any = None
        self._opened: _Opened | None = None
        self.id = ""
        self.name = wanted.name
        self.intent: Any = wanted.intent
        self.settled = False
        self.also: list[Change] = []
        """Events that are written with the outcome, in the same transaction."""

    def __repr__(self) -> str:
        return f"<ActiveEffect {self.name!r} {self.id}>"

    def __enter__(self) -> Self:
        opened = self._opened = self._effects._enter(self._wanted)
        self.id, self.intent = opened.id, opened.intent
        self.settled, self._result = opened.settled, opened.result
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened = self._opened
        if opened is None or self.settled:
            return
        if isinstance(error, EffectInDoubt) and error.effect is None:
            error.effect = self.id  # so that a loop knows what to wait for
        try:
            self._effects._leave(opened, self._result, error, self.also)
        except BaseException:
            opened.release()
            raise
        if error is not None:
            opened.release()

    @property
    def result(self) -> Any:
        """Its result; set it inside the block."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.settled:
            raise InvalidEffect(
                f"{self.name!r} was done before; its result is recorded.",
                hint="Nothing was written. Do not act when effect.settled is true.",
            )
        # Checked here, so that a value that cannot be stored is an error at the line that sets it.
        freeze(value, ("result",))
        self._result = value


class _Opened(msgspec.Struct, frozen=True):
    """An intent that is durable, or settled.

    ``token`` is what the record says of this call; ``release`` returns its occurrence.
    """

    id: str
    token: str
    intent: Any
    settled: bool
    result: Any
    release: Callable[[], None]


class Effects:
    """The effects of a session: its ledger, its rules, and what settles them."""

    def __init__(
        self,
        writer: Writer,
        scope: Scope,
        checkpoint: Callable[[str], object],
        answer: Callable[[Effect], bool],
        plan: Callable[[PointLike], EffectPlan],
    ) -> None:
        """Connect to a session.

        ``checkpoint`` takes one before an act; ``answer`` asks the program for an approval, and
        returns whether it gave an answer; ``plan`` is what a restore means for effects.
        """
        self._writer = writer
        self._scope = scope
        self._engine = writer.engine
        self._checkpoint = checkpoint
        self._answer = answer
        self._plan = plan
        self._rules: list[EffectRule] = []
        self._active: set[str] = set()
        self._numbers = count(1)
        self._checks: dict[str, Check] = {}
        self.undos: dict[str, Undo] = {}
        """The functions of this program that compensate effects, by name."""

    def __iter__(self) -> Iterator[Effect]:
        """Yield all effects, in the order in which they were intended."""
        return iter(self.list())

    def list(self, *, pending: bool = False, in_doubt: bool = False) -> Sequence[Effect]:
        """Return the effects, oldest first; or only those that wait for approval, or in doubt."""
        document = self._writer.document()
        beyond = ledger.outside(document)
        found = [
            self._effect(id, record, beyond) for id, record in ledger.records(document).items()
        ]
        if not (pending or in_doubt):
            return found
        return [
            effect
            for effect in found
            if (pending and effect.is_pending) or (in_doubt and _is_doubtful(effect))
        ]

    def get(self, id: str) -> Effect:
        """Return an effect by its id, or by the beginning of one."""
        document = self._writer.document()
        known, record = known_effect(document, id)
        return self._effect(known, record, ledger.outside(document))

    def plan(self, point: PointLike) -> EffectPlan:
        """Return what a restore of a point would mean for the effects after it."""
        return self._plan(point)

    def rule(self, name: str = "*", **answers: Any) -> None:
        """Add a rule for effects whose name matches a pattern; see ``mulligan.EffectRule``.

        It counts for this handle, after the rules of the store and those added before.
        """
        self._rules.append(effect_rules.make_rule(name, **answers))

    def on(self, name: str, *, undo: Undo | None = None, check: Check | None = None) -> None:
        """Tell how effects of a name are compensated and checked, also those of earlier runs."""
        check_name(name, "effect")
        for given, known in ((undo, self.undos), (check, self._checks)):
            if given is not None and not callable(given):
                raise InvalidEffect(f"undo= and check= are functions, not {given!r}.")
            if given is not None:
                known[name] = given

    def settle(
        self,
        id: str,
        outcome: Literal["done", "failed"],
        *,
        result: Any = None,
        note: str | None = None,
        by: str | None = None,
    ) -> Effect:
        """Say whether an effect in doubt happened; raises ``Conflict`` for any other."""
        arguments.outcome("An effect", outcome, result, note)
        fields = {"status": outcome, "by": by or self._writer.actor, "note": note, "acting": None}
        fields |= {"result": result} if outcome == DONE else {"error": note or "did not happen"}

        def decide(work: Work) -> str:
            known, record = known_effect(work.document, id)
            if record["status"] != IN_DOUBT and not self._may_settle(record):
                status = "being performed" if ledger.is_under_way(record) else record["status"]
                raise Conflict(
                    f"The effect {known} ({record['name']}) is {status}, not in doubt.",
                    hint="Nothing was written.",
                )
            work.add(ledger.effect_change("effect.settled", known, record, fields))
            if outcome == FAILED:
                for change in ledger.returned_changes(work.document, known, record["name"]):
                    work.add(change)
            return known

        settled = self._writer.commit(decide)
        self._engine.failpoint(Failpoint.EFFECT_RECORDED)
        return self.get(settled)

    def make(
        self,
        name: str,
        intent: Any = None,
        *,
        key: str | None = None,
        kind: EffectKind | None = None,
        reversible: bool | None = None,
        undo: Undo | Sequence[str] | None = None,
        check: Check | None = None,
        stakes: Stakes = "normal",
        repeat: Repeat | None = None,
        wait: float = 0.0,
    ) -> ActiveEffect:
        """Return an effect for a ``with`` block; see ``Session.effect``."""
        check_name(name, "effect")
        self.on(name, undo=undo if callable(undo) else None, check=check)
        found = _kind(name, kind, reversible, undo, self.undos)
        for word, value, known in (
            ("stakes", stakes, effect_rules.STAKES),
            ("repeat", repeat, (None, *get_args(Repeat))),
        ):
            if value not in known:
                raise InvalidEffect(f"{word}= is one of {', '.join(known[-3:])}, not {value!r}.")
        if key is not None and not 0 < len(arguments.text(key, "A key", InvalidEffect)) <= MAX_KEY:
            raise InvalidEffect(f"A key has 1 to {MAX_KEY} characters, not {len(key)}.")
        freeze(intent, ("intent",))
        wanted = Wanted(
            name=name,
            intent=intent,
            kind=found,
            stakes=stakes,
            key=key,
            undo=[*undo] if isinstance(undo, list | tuple) else found == REVERSIBLE,
            check=check or self._checks.get(name),
            repeat=repeat,
            wait=arguments.seconds(wait, "wait=", zero=True),
        )
        return ActiveEffect(self, wanted)

    def _enter(self, wanted: Wanted) -> _Opened:
        """Write the intent down, or find that it is settled; raises what stops the act."""
        # Inside a batch, the intent would not be durable before the act.
        self._writer.check_alone("An effect")
        rules = (*self._engine.effect_rules, *self._rules)
        rule = effect_rules.decide(rules, wanted.name, wanted.kind, wanted.stakes)
        scope, identity = self._scope.name, ledger.identity_of(wanted.intent, rule.identity)
        if wanted.key is not None:
            id = ledger.intent_id(wanted.name, wanted.key)
            return self._open(self._admission(wanted, rule, id, identity), _nothing)
        counted = f"effect {wanted.name} {identity}"
        number = self._scope.occurrences.take(scope, counted)
        id = ledger.intent_id(wanted.name, scope, identity, number)

        def release() -> None:
            self._scope.occurrences.put_back(scope, counted, number)

        try:
            opened = self._open(self._admission(wanted, rule, id, identity), release)
        except BaseException:
            release()
            raise
        if opened.id == id:
            return opened
        release()  # one from beyond the point was taken, so this occurrence is still free
        return msgspec.structs.replace(opened, release=_nothing)

    def _admission(self, wanted: Wanted, rule: EffectRule, id: str, identity: str) -> Admission:
        return Admission(
            wanted=wanted,
            rule=rule,
            id=id,
            identity=identity,
            agent=self._writer.actor,
            task=self._scope.task,
            token=f"{self._handle}{next(self._numbers)}",
            is_abandoned=self._is_abandoned,
        )

    def _open(self, admission: Admission, release: Callable[[], None]) -> _Opened:
        """Follow the verdicts on a record until it is settled, or this call may act."""
        wanted, clock = admission.wanted, self._engine.clock
        until = clock.monotonic() + wanted.wait
        may_act = not admission.takes_checkpoint
        while True:
            found = self._decided(admission, may_act=may_act)
            effect = self._effect(found.id, found.record, ())
            match found.verdict:
                case "settled":
                    result = effect.result
                    return _Opened(found.id, "", effect.intent, True, result, release)
                case "act":
                    token = admission.token
                    return _Opened(found.id, token, effect.intent, False, None, release)
                case "ready":
                    # Before the transaction from which on this call may act: after a crash in
                    # between, the effect has not happened.
                    self._checkpoint(f"before {wanted.name}")
                    may_act = True
                case "doubt" if wanted.check is not None:
                    self._settle_by_check(effect, wanted.check)
                case "pending" if self._answer(effect):
                    continue
                case "pending" if clock.monotonic() < until:
                    # Polled: the answer is an event that another process writes.
                    clock.sleep(POLL_SECONDS)
                case stopped:
                    raise _refusal(stopped, effect)

    def _decided(self, admission: Admission, *, may_act: bool) -> Found:
        """Decide on the newest record of an intent, in one transaction."""
        now = self._engine.clock.now()

        def decide(work: Work) -> Found:
            return admission.decide(work, now, may_act=may_act)

        # Most replays meet a settled effect, which needs no transaction.
        settled = self._settled(admission)
        if settled is not None:
            return settled
        # Before the commit: another thread that sees the record then must not take it for one
        # whose call has ended.
        self._active.add(admission.token)
        found: Found | None = None
        try:
            found = self._writer.commit(decide)
        finally:
            if found is None or found.verdict != "act":
                self._active.discard(admission.token)
        if found.verdict == "act":
            self._engine.failpoint(Failpoint.EFFECT_INTENDED)
        elif found.verdict == "pending":
            self._engine.failpoint(Failpoint.EFFECT_ASKED)
        return found

    def _settled(self, admission: Admission) -> Found | None:
        document = self._writer.document()
        record = ledger.find(document, admission.id)
        if record is None or record["status"] != DONE or ledger.is_outside(document, admission.id):
            return None
        return Found("settled", admission.id, record)

    def _leave(
        self, opened: _Opened, result: Any, error: BaseException | None, also: Sequence[Change]
    ) -> None:
        """Write the outcome of an act, and what belongs to it, in one transaction."""
        self._engine.failpoint(Failpoint.EFFECT_ACTED)
        if error is None:
            kind, fields = "effect.done", {"status": DONE, "result": result, "error": None}
        elif isinstance(error, Exception) and not isinstance(error, EffectInDoubt):
            kind, fields = "effect.failed", {"status": FAILED, "error": said(error)}
        else:
            # Cancelled or interrupted in the middle of the act: it may have happened.
            kind, fields = "effect.in_doubt", {"status": IN_DOUBT, "error": said(error)}

        def decide(work: Work) -> None:
            record = ledger.find(work.document, opened.id)
            if record is None or record.get("acting") != opened.token:
                # A local effect whose state was restored meanwhile, or one that was settled.
                said = f"The effect {opened.id} is no longer this call's."
                raise Conflict(said, hint=_MEANWHILE)
            work.add(ledger.effect_change(kind, opened.id, record, fields))
            for change in also if error is None else ():
                work.add(change)

        try:
            self._writer.commit(decide)
        finally:
            # Also after a failure: the act is over, and without an outcome it is in doubt.
            self._active.discard(opened.token)
        self._engine.failpoint(Failpoint.EFFECT_RECORDED)

    def _settle_by_check(self, effect: Effect, check: Check) -> None:
        """Ask the outside world whether an effect happened; raises if it cannot tell."""
        found = check(effect.intent)
        if found is None:
            raise _refusal("doubt", effect)
        if found is False:
            self.settle(effect.id, "failed", note="checked: it did not happen", by="check")
        else:
            self.settle(effect.id, "done", result=found, note="checked", by="check")

    @property
    def _handle(self) -> str:
        """This process and this handle of it, which knows its own acts that are under way."""
        return f"{leases.this_process()}#{id(self):x}."

    def _is_abandoned(self, record: Mapping[str, Any]) -> bool:
        """Whether no call acts any more: its process is dead, or its outcome was not written."""
        if ledger.is_abandoned(record):
            return True
        acting = str(record.get("acting"))
        is_own = ledger.is_under_way(record) and acting.startswith(self._handle)
        return is_own and acting not in self._active

    def _may_settle(self, record: Mapping[str, Any]) -> bool:
        """Whether an act is over, or its process is on another machine and cannot be looked at."""
        is_elsewhere = not leases.is_local(ledger.holder_of(record))
        return self._is_abandoned(record) or (ledger.is_under_way(record) and is_elsewhere)

    def _effect(self, id: str, record: Mapping[str, Any], beyond: Container[str]) -> Effect:
        status = ledger.status_of(record, id, beyond)
        if status in ledger.UNDER_WAY and self._is_abandoned(record):
            status = IN_DOUBT
        if is_expired(record, self._engine.clock.now()):
            status = DENIED
        known = {key: record[key] for key in _FIELDS & record.keys()}
        acting = None if known.get("acting") is None else str(known["acting"]).split("#")[0]
        return msgspec.convert(
            {**known, "id": id, "status": status, "acting": acting}, ready(Effect)
        )


def known_effect(document: Document, id: str) -> tuple[str, dict[str, Any]]:
    """Return the id and the record that an id, or the beginning of one, names."""
    arguments.text(id, "The id of an effect", InvalidEffect)
    record = ledger.find(document, id)
    if record is not None:
        return id, record
    found = [item for item in ledger.records(document).items() if id and item[0].startswith(id)]
    if len(found) != 1:
        which = f"{len(found)} effects have" if found else "No effect has"
        raise UnknownEffect(f"{which} an id that begins with {id!r}.")
    return found[0]


def check_name(name: Any, what: str) -> str:
    """Return the name of a step, an effect or a tool if it can be one."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidEffect(f"The name of a {what} is a text, not {name!r}.")
    if len(name) > MAX_NAME:
        raise InvalidEffect(f"A name of {len(name)} characters is too long; {MAX_NAME} may be.")
    return name


def said(error: BaseException) -> str:
    """Return an error as a record has it."""
    return f"{type(error).__name__}: {error}"[:500]


def _nothing() -> None:
    pass


def _is_doubtful(effect: Effect) -> bool:
    return effect.status == IN_DOUBT


def _kind(
    name: str,
    kind: EffectKind | None,
    reversible: bool | None,
    undo: Any,
    undos: Mapping[str, Undo],
) -> EffectKind:
    """Return the kind that the arguments of a call mean; without any, it is irreversible."""
    if kind is not None and kind not in effect_rules.KINDS:
        known = ", ".join(effect_rules.KINDS)
        raise InvalidEffect(f"kind= is one of {known}, not {kind!r}.")
    if undo is not None and not callable(undo) and not _is_command(undo):
        raise InvalidEffect(f"undo= is a function or a command as a list of texts, not {undo!r}.")
    is_reversible = reversible or (reversible is None and undo is not None)
    found: EffectKind = kind or ("reversible" if is_reversible else "irreversible")
    if found == REVERSIBLE and undo is None and name not in undos:
        raise InvalidEffect(
            f"The reversible effect {name!r} needs undo=.",
            hint="Nothing was written. A function, or a command as a list of texts.",
        )
    if found != REVERSIBLE and (undo is not None or reversible):
        raise InvalidEffect(f"An effect that is {found} has no undo=, and is not reversible.")
    return found


def _is_command(undo: Any) -> bool:
    is_list = isinstance(undo, list | tuple) and len(undo) > 0
    return is_list and all(isinstance(word, str) for word in undo)


def _refusal(verdict: str, effect: Effect) -> Exception:
    """Return the error for a call that may not act."""
    what = f"The effect {effect.name!r} ({effect.id})"
    if verdict == "pending":
        return ApprovalPending(f"{what} waits for approval.", effect=effect.id)
    if verdict == "denied":
        question = effect.question
        by = "" if question is None else f" by {question.by}"
        note = "" if question is None or not question.note else f": {question.note}"
        return EffectDenied(f"{what} was denied{by}{note}.", effect=effect.id)
    if verdict == "doubt":
        said = f"{what} may have happened: its outcome was not recorded."
        return EffectInDoubt(said, effect=effect.id)
    if verdict == "repeated":
        said = f"{what} was done before the session went back."
        return EffectRepeated(said, effect=effect.id)
    return Conflict(f"{what} is being performed by {effect.acting}.", hint=_BUSY)


_BUSY = "Nothing was done. Wait for its end, or use another key."
_MEANWHILE = "It acted, and something else settled or removed it meanwhile: `mulligan effects`."
