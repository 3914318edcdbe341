"""Retention: which checkpoints to keep and which to remove, each with its reason.

A pure function of the policy, the checkpoints and the time. A checkpoint is kept if any rule keeps
it, so a more generous policy keeps all that a stricter one does. Sessions do not influence each
other, nor do the agents of a session, except that the newest checkpoint of a session is always
kept, and by the quota.

Clocks jump, so the order of checkpoints is that of their seq. Only limits that are durations look
at the time; of two checkpoints of an agent, the later one by seq is never older:

- A time after ``now`` cannot be right; the time of the next one that is not after ``now`` is taken,
  since it happened before that, or else ``now``.
- A time before that of an earlier checkpoint cannot be right either, or the other one is not. The
  later of both is taken.

So a wrong time makes a checkpoint younger than it is, and may keep it for longer. Hours, days,
weeks and months are runs of consecutive checkpoints: where a clock went back, an hour counts twice,
and if all times are nonsense, ``keep_hourly = 24`` is ``keep_last = 24``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Literal

import msgspec

from mulligan.config.values import duration_text
from mulligan.upkeep.retention.policy import HOUR, Policy, Rules

OperationState = Literal["open", "succeeded", "failed"]

UNDO = "undo"
"""In ``Candidate.needed_by``: undo or redo can go there; it counts within the undo window."""

GOOD, OPEN, FAILED = "good", "open", "failed"


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What retention has to know about a checkpoint.

    ``label`` is there only if it still names this checkpoint. ``needed_by`` says in words what
    needs it, such as "fork 'x' starts here"; ``UNDO`` is the one that expires. ``bytes_freed`` is
    what its removal frees once all older ones are gone; None if that is not known.
    """

    session: str
    agent: str
    id: str
    seq: int
    time: datetime
    kind: str
    label: str | None = None
    pinned: bool = False
    verdict: str | None = None
    is_safety: bool = False
    operation: OperationState | None = None
    needed_by: tuple[str, ...] = ()
    bytes_freed: int | None = None


class Ruling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether a checkpoint is kept, by which rule, and why.

    ``rule`` is a key of the policy, or what exempts the checkpoint: ``pinned``, ``label``,
    ``needed``, ``operation`` or ``newest``; ``cleared`` if it was asked for. The quota removes
    nothing that is ``exempt``.
    """

    session: str
    id: str
    seq: int
    keep: bool
    rule: str
    reason: str
    exempt: bool = False
    bytes_freed: int | None = None


class RetentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One ruling per checkpoint, in the order of sessions and seqs.

    ``over_quota`` is by how many bytes the store will be larger than its quota after it; 0 if it
    will not be, or has none.
    """

    rulings: tuple[Ruling, ...]
    over_quota: int = 0

    @property
    def keep(self) -> tuple[Ruling, ...]:
        """What is kept."""
        return tuple(ruling for ruling in self.rulings if ruling.keep)

    @property
    def remove(self) -> tuple[Ruling, ...]:
        """What is removed."""
        return tuple(ruling for ruling in self.rulings if not ruling.keep)


def plan_retention(
    policy: Policy,
    candidates: Iterable[Candidate],
    now: datetime,
    *,
    cleared: Collection[str] = (),
    used: int | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> RetentionPlan:
    """Return what to keep and what to remove of all checkpoints of a store.

    ``policies`` are those of sessions that have their own; the smallest quota counts for the store.

    ``cleared`` are kinds of which only exempt checkpoints are to stay. ``used`` is the size of
    the store for the quota; without it, that is what the checkpoints would free together.
    """
    sessions: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        sessions[candidate.session].append(candidate)
    rulings: list[Ruling] = []
    ordered: list[Candidate] = []
    for name in sorted(sessions):
        checkpoints = sorted(sessions[name], key=lambda candidate: candidate.seq)
        own = (policies or {}).get(name, policy)
        rulings += _SessionPlan(own, checkpoints, now.timestamp(), cleared).rulings()
        ordered += checkpoints
    quotas = [one.quota for one in (policy, *(policies or {}).values()) if one.quota is not None]
    if not quotas:
        return RetentionPlan(rulings=tuple(rulings))
    if used is None:
        used = sum(candidate.bytes_freed or 0 for candidate in ordered)
    return _within_quota(min(quotas), used, rulings, _oldest_first(ordered, now.timestamp()))


def times_by_seq(checkpoints: Sequence[Candidate], now: float) -> list[float]:
    """Return when checkpoints in the order of their seq were taken, never going backwards."""
    times = [candidate.time.timestamp() for candidate in checkpoints]
    following = now
    for number in range(len(times) - 1, -1, -1):
        if times[number] > now:
            times[number] = following
        following = times[number]
    latest = float("-inf")
    for number, time in enumerate(times):
        latest = times[number] = max(latest, time)
    return times


def _oldest_first(checkpoints: Sequence[Candidate], now: float) -> list[int]:
    """Return the indexes of all checkpoints by age; within a session, that is the order of seq."""
    times: list[float] = []
    start = 0
    for end in range(1, len(checkpoints) + 1):
        if end == len(checkpoints) or checkpoints[end].session != checkpoints[start].session:
            times += times_by_seq(checkpoints[start:end], now)
            start = end
    return sorted(range(len(times)), key=lambda index: (times[index], index))


def _within_quota(
    quota: int, used: int, rulings: list[Ruling], oldest_first: Iterable[int]
) -> RetentionPlan:
    """Remove the oldest that are not exempt, until the store is within its quota."""
    left = used - sum(ruling.bytes_freed or 0 for ruling in rulings if not ruling.keep)
    for index in oldest_first:
        if left <= quota:
            break
        ruling = rulings[index]
        if not ruling.keep or ruling.exempt:
            continue
        left -= ruling.bytes_freed or 0
        reason = f"The store exceeds its quota of {quota:,} bytes, so the oldest are removed."
        rulings[index] = msgspec.structs.replace(ruling, keep=False, rule="quota", reason=reason)
    return RetentionPlan(rulings=tuple(rulings), over_quota=max(0, left - quota))


class _Kept(msgspec.Struct, frozen=True):
    rule: str
    reason: str
    exempt: bool = False


class _SessionPlan:
    """The checkpoints of one session, in the order of their seq, and what keeps each of them."""

    def __init__(
        self, policy: Policy, checkpoints: Sequence[Candidate], now: float, cleared: Collection[str]
    ) -> None:
        self._policy = policy
        self._checkpoints = checkpoints
        self._now = now
        self._cleared = frozenset(cleared)
        self._kept: dict[int, _Kept] = {}
        self._removed = cache(self._explain_removal)
        self._kept_whole = cache(self._explain_keep_all)

    def rulings(self) -> list[Ruling]:
        """Return what happens to each of them; the strongest rule is the one that is named."""
        agents: defaultdict[str, list[Candidate]] = defaultdict(list)
        for candidate in self._checkpoints:
            self._exempt(candidate)
            agents[candidate.agent].append(candidate)
        for name, checkpoints in agents.items():
            self._exempt_of_agent(name, checkpoints)
        for name, checkpoints in agents.items():
            self._apply_limits(name, checkpoints)
        return [self._ruling(candidate) for candidate in self._checkpoints]

    def _exempt(self, candidate: Candidate) -> None:
        """Keep what is kept for its own sake, whatever its age and its neighbours."""
        kept: _Kept | None
        if candidate.pinned:
            kept = _Kept("pinned", "It is pinned.", True)
        elif candidate.label is not None:
            kept = _Kept("label", f"The label {candidate.label!r} names it.", True)
        elif needed := [reason for reason in candidate.needed_by if reason != UNDO]:
            kept = _Kept("needed", f"Needed: {'; '.join(needed)}.", True)
        elif candidate.operation == OPEN:
            kept = _Kept("operation", "Its operation has not ended.", True)
        else:
            kept = self._kept_whole(candidate.kind, candidate.is_safety)
        if kept:
            self._kept[candidate.seq] = kept

    def _explain_keep_all(self, kind: str, is_safety: bool) -> _Kept | None:
        """Return why all checkpoints of a kind are kept; None if they are not."""
        key, rules = self._policy.rules_of(kind)
        if kind in self._cleared:
            return None
        if self._policy.general.keep_all:
            return _Kept("keep_all", "All checkpoints are kept.", True)
        if rules.keep_all and not is_safety:
            return _Kept(f"{key}.keep_all", f"All {kind} checkpoints are kept.", True)
        return None

    def _exempt_of_agent(self, agent: str, checkpoints: Sequence[Candidate]) -> None:
        """Keep what undo can reach, and the last good ones."""
        window, count = self._policy.undo_window, self._policy.keep_good
        undo = _Kept("undo_window", f"Undo can go back to it within {duration_text(window)}.", True)
        reachable = [candidate for candidate in checkpoints if UNDO in candidate.needed_by]
        for candidate in self._younger(reachable, window):
            self._kept.setdefault(candidate.seq, undo)
        last_good = _Kept("keep_good", f"One of the last {count} good ones of {agent!r}.", True)
        good = [candidate for candidate in checkpoints if candidate.verdict == GOOD]
        for candidate in _last(good, count):
            self._kept.setdefault(candidate.seq, last_good)

    def _apply_limits(self, agent: str, checkpoints: Sequence[Candidate]) -> None:
        """Keep what the limits of each kind keep, then what those for all kinds do."""
        kinds: defaultdict[str, list[Candidate]] = defaultdict(list)
        uncleared = [c for c in checkpoints if c.kind not in self._cleared]
        for candidate in uncleared:
            if not candidate.is_safety and candidate.operation != OPEN:
                kinds[candidate.kind].append(candidate)
        for kind, members in kinds.items():
            key, rules = self._policy.rules_of(kind)
            self._limit(members, rules, f"{key}.", f"{kind} checkpoint", agent)
        self._keep_failed(uncleared)
        self._keep_young_safety(uncleared)
        self._limit(uncleared, self._policy.general, "", "checkpoint", agent)

    def _keep_failed(self, checkpoints: Sequence[Candidate]) -> None:
        failed = [candidate for candidate in checkpoints if candidate.operation == FAILED]
        limit = self._policy.keep_failed
        reason = f"Its operation failed; such checkpoints are kept for {duration_text(limit)}."
        for candidate in self._younger(failed, limit):
            self._kept.setdefault(candidate.seq, _Kept("keep_failed", reason))

    def _keep_young_safety(self, checkpoints: Sequence[Candidate]) -> None:
        """Keep what restores replaced lately, even where undo does not reach it any more.

        After a restore, work, an undo and another restore, only the safety checkpoint of the undo
        holds that work.
        """
        window = min(self._policy.window, self._policy.undo_window)
        reason = f"A safety checkpoint of the last {duration_text(window)}."
        safety = [candidate for candidate in checkpoints if candidate.is_safety]
        for candidate in self._younger(safety, window):
            self._kept.setdefault(candidate.seq, _Kept("window", reason))

    def _limit(
        self, members: Sequence[Candidate], rules: Rules, prefix: str, noun: str, agent: str
    ) -> None:
        """Keep what the limits keep of checkpoints of one agent."""
        last = _Kept(
            f"{prefix}keep_last", f"One of the last {rules.keep_last} {noun}s of {agent!r}."
        )
        for candidate in _last(members, rules.keep_last):
            self._kept.setdefault(candidate.seq, last)
        for period in _PERIODS:
            for candidate in period.newest(members, getattr(rules, period.key)):
                if candidate.seq not in self._kept:
                    reason = f"The newest {noun} of {agent!r} in {period.text(candidate.time)}."
                    self._kept[candidate.seq] = _Kept(f"{prefix}{period.key}", reason)
        within = _Kept(
            f"{prefix}keep_within",
            f"A {noun} of {agent!r} of the last {duration_text(rules.keep_within)}.",
        )
        for candidate in self._younger(members, rules.keep_within):
            self._kept.setdefault(candidate.seq, within)

    def _younger(self, members: Sequence[Candidate], limit: float) -> Iterator[Candidate]:
        """Yield what is not older than a limit, if there is one."""
        if limit:
            times = times_by_seq(members, self._now)
            yield from (c for c, t in zip(members, times, strict=True) if self._now - t <= limit)

    def _ruling(self, candidate: Candidate) -> Ruling:
        kept = self._kept.get(candidate.seq)
        newest = candidate is self._checkpoints[-1]
        if kept is None and newest:
            reason = f"The newest checkpoint of session {candidate.session!r} is always kept."
            kept = _Kept("newest", reason)
        rule, reason = (
            (kept.rule, kept.reason) if kept else self._removed(candidate.kind, candidate.is_safety)
        )
        return Ruling(
            session=candidate.session,
            id=candidate.id,
            seq=candidate.seq,
            keep=kept is not None,
            rule=rule,
            reason=reason,
            exempt=newest or (kept is not None and kept.exempt),
            bytes_freed=candidate.bytes_freed,
        )

    def _explain_removal(self, kind: str, is_safety: bool) -> tuple[str, str]:
        """Return which rule does not keep a checkpoint of a kind, and why."""
        if kind in self._cleared:
            return "cleared", f"All {kind} checkpoints are to be cleared."
        if is_safety:
            window = duration_text(self._policy.undo_window)
            return "undo_window", f"Undo does not reach this safety checkpoint within {window}."
        key, rules = self._policy.rules_of(kind)
        limits = [f"{key}: {rules}"] if str(rules) else []
        if general := str(self._policy.general):
            limits.append(f"all kinds: {general}")
        if not limits:
            return key, f"The policy keeps no {kind} checkpoints."
        return key, f"No rule for {kind} checkpoints keeps it ({'; '.join(limits)})."


class _Period(msgspec.Struct, frozen=True):
    """Hours, days, weeks or months, in UTC: the limit's key, a number for each, and its name."""

    key: str
    number: Callable[[datetime], int]
    noun: str
    form: str

    def newest(self, members: Sequence[Candidate], count: int) -> Iterator[Candidate]:
        """Yield the newest of each of the last periods; a period is a run of checkpoints."""
        current: int | None = None
        for candidate in reversed(members) if count else ():
            number = self.number(candidate.time)
            if number == current:
                continue
            if not count:
                return
            current, count = number, count - 1
            yield candidate

    def text(self, time: datetime) -> str:
        """Return the period of a time in words."""
        return f"the {self.noun} {time.astimezone(UTC).strftime(self.form)} UTC"


def _hour(time: datetime) -> int:
    return int(time.timestamp() // HOUR)


def _day(time: datetime) -> int:
    return time.astimezone(UTC).toordinal()


def _week(time: datetime) -> int:
    return (time.astimezone(UTC).toordinal() - 1) // 7  # day 1 was a Monday


def _month(time: datetime) -> int:
    utc = time.astimezone(UTC)
    return utc.year * 12 + utc.month


_PERIODS = (
    _Period("keep_hourly", _hour, "hour", "%Y-%m-%d %H:00"),
    _Period("keep_daily", _day, "day", "%Y-%m-%d"),
    _Period("keep_weekly", _week, "week", "%G-W%V"),
    _Period("keep_monthly", _month, "month", "%Y-%m"),
)


def _last(members: Sequence[Candidate], count: int) -> Sequence[Candidate]:
    return members[-count:] if count else ()
