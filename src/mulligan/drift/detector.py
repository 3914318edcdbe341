"""The detector: passes each observation to the signals, calibrates them, and explains alarms.

Its work per observation is constant, and so is its memory. Its state is plain values, so that it
can be kept with the session; see ``mulligan.session.runtime.drift``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mulligan.decoding import ready
from mulligan.drift.observation import (
    ACTION,
    CYCLE,
    KINDS,
    PROGRESS,
    RESET,
    Observation,
    digest,
    near,
)
from mulligan.drift.registry import signals
from mulligan.drift.settings import DriftSettings
from mulligan.drift.signals.signal import Signal, Step, keep
from mulligan.errors import InvalidSignal

STATE_VERSION = 1

MAX_SEEN = 1_024
"""How many different steps are remembered; older ones count as new when they come again."""


class Alarm(msgspec.Struct, frozen=True):
    """A signal that has reached its threshold, with the events that show it and one sentence.

    ``acts`` tells an alarm that calls for a response from a warning, which is only noted.
    """

    signal: str
    acts: bool
    score: float
    why: str
    evidence: tuple[int, ...]
    seq: int
    actor: str = ""


class DetectorState(msgspec.Struct):
    """All that a detector knows, as plain values."""

    version: int
    seen: list[int]
    signals: dict[str, Any]
    cycle: int
    has_cycles: bool
    has_progress: bool
    last_time: float | None
    baseline: dict[str, float] | None
    warned: list[str]


class Detector:
    """Watches the run of one agent."""

    def __init__(self, settings: DriftSettings, state: DetectorState | None = None) -> None:
        self.settings = settings
        self._kinds = [kind for kind in signals() if kind.name not in settings.off]
        self._baseline: dict[str, float] | None = None
        self._start()
        if state is not None and state.version == STATE_VERSION:
            self._load(state)

    def _start(self) -> None:
        """Forget everything but what is usual in this session."""
        self._take_up([kind() for kind in self._kinds])
        self._seen: dict[int, None] = {}
        self._warned: set[str] = set()
        self._cycle = 0
        self._has_cycles = self._has_progress = False
        self._last_time: float | None = None
        for signal in self.signals:
            if self._baseline is not None and signal.name in self._baseline:
                signal.calibrate(self._baseline[signal.name])

    def _take_up(self, signals: list[Signal]) -> None:
        self.signals = signals
        # Most signals are about actions, and most events are not.
        self._taking = {
            kind: [signal for signal in signals if kind in signal.takes] for kind in KINDS
        }

    def observe(self, seen: Observation) -> list[Alarm]:
        """Take what happened next, and return what that makes alarming.

        Raises ``InvalidSignal`` for a signal that fails.
        """
        if seen.kind == RESET:
            self._start()
            return []
        step = self._step(seen)
        taking = self._taking[seen.kind]
        for signal in taking:
            try:
                signal.observe(step, self.settings)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                raise InvalidSignal(f"The signal {signal.name!r} failed: {said}.") from error
        alarms = self._alarms(seen, taking)
        if step.ends_cycle and self._baseline is None and self._cycle >= self.settings.baseline:
            self._calibrate()
        return alarms

    @property
    def score(self) -> float:
        """How likely it is that the run has drifted, from 0 to 1, as far as signals that act say.

        Each is taken for an independent sign: several that are half there count for more than one.
        """
        doubt = 1.0
        for signal in self.signals:
            if signal.acts:
                doubt *= 1.0 - signal.score
        return 1.0 - doubt

    def scores(self) -> dict[str, float]:
        """Return the score of every signal."""
        return {signal.name: signal.score for signal in self.signals}

    def _step(self, seen: Observation) -> Step:
        step = Step(seen)
        if seen.kind == ACTION:
            step.tool = digest(seen.actor, seen.name)
            step.act = digest(str(step.tool), str(near(seen.text)))
            # The result as it is, but for white space: output that changes at all is new.
            step.whole = digest(str(step.act), " ".join(seen.result.split()))
        elif seen.kind == PROGRESS:
            step.whole = digest(seen.name, seen.text, seen.result)
        if step.whole:
            step.is_new = step.whole not in self._seen
            keep(self._seen, step.whole, None, MAX_SEEN)
            self._judge_progress(step)
        self._count_cycle(step)
        return step

    def _judge_progress(self, step: Step) -> None:
        if step.is_new and not step.seen.failed:
            if step.seen.kind == PROGRESS:
                self._has_progress = True
            step.advances = step.seen.kind == PROGRESS or not self._has_progress

    def _count_cycle(self, step: Step) -> None:
        """Find out whether a cycle ends; where none are recorded, each action is one."""
        seen = step.seen
        if seen.kind == CYCLE:
            self._has_cycles = True
        step.ends_cycle = seen.kind == CYCLE or (seen.kind == ACTION and not self._has_cycles)
        if step.ends_cycle:
            self._cycle += 1
            step.seconds = seen.seconds
            if seen.seconds is None and None not in (seen.time, self._last_time):
                step.seconds = max(0.0, (seen.time or 0.0) - (self._last_time or 0.0))
            self._last_time = seen.time
        step.cycle = self._cycle

    def _alarms(self, seen: Observation, taking: list[Signal]) -> list[Alarm]:
        """Return the alarms of the signals that took an observation; others stay as they were."""
        high = [signal for signal in taking if self._is_high(signal)]
        acting = [signal for signal in taking if signal.level >= 1.0 and signal.acts]
        if not high and not acting:
            return []
        found = [self._alarm(signal, seen, acts=False) for signal in high if self._is_news(signal)]
        if acting:
            # One at a time: what two signals see in the same events calls for one response.
            strongest = max(acting, key=lambda signal: signal.level)
            found.append(self._alarm(strongest, seen, acts=True))
        self._spend(found)
        return found

    def _is_high(self, signal: Signal) -> bool:
        if signal.level and signal.level >= signal.warns_at(self.settings):
            return True
        self._warned.discard(signal.name)
        return False

    def _is_news(self, signal: Signal) -> bool:
        """Whether a high signal is noted: one that acts once on the way up, another each time."""
        return not signal.acts or (signal.level < 1.0 and signal.name not in self._warned)

    def _spend(self, found: Sequence[Alarm]) -> None:
        """Use evidence up: what led to an alarm leads to no other, by whatever signal."""
        if not found:
            return
        acting = any(alarm.acts for alarm in found)
        noted = {alarm.signal for alarm in found}
        for signal in self.signals:
            if signal.acts and acting:
                signal.spend()
                self._warned.discard(signal.name)
            elif signal.acts and signal.name in noted:
                # A warning on the way to an alarm: it is given once, and the count goes on.
                self._warned.add(signal.name)
            elif signal.name in noted:
                signal.spend()

    def _alarm(self, signal: Signal, seen: Observation, *, acts: bool) -> Alarm:
        evidence = tuple(signal.evidence)
        return Alarm(
            signal.name, acts, round(signal.score, 3), signal.why(), evidence, seen.seq, seen.actor
        )

    def _calibrate(self) -> None:
        """Take what the first cycles were like for what is usual in this session."""
        self._baseline = {signal.name: signal.baseline() for signal in self.signals}
        for signal in self.signals:
            signal.calibrate(self._baseline[signal.name])

    def dump(self) -> bytes:
        """Return the state; ``load`` makes the same detector of it."""
        state = DetectorState(
            version=STATE_VERSION,
            seen=list(self._seen),
            signals={signal.name: signal.dump() for signal in self.signals},
            cycle=self._cycle,
            has_cycles=self._has_cycles,
            has_progress=self._has_progress,
            last_time=self._last_time,
            baseline=self._baseline,
            warned=sorted(self._warned),
        )
        return msgspec.msgpack.encode(state)

    def _load(self, state: DetectorState) -> None:
        known = {kind.name: kind for kind in self._kinds}
        loaded = {
            name: known[name].load(plain) for name, plain in state.signals.items() if name in known
        }
        # A signal that is new since, or was off, starts with nothing.
        self._take_up([loaded.get(signal.name, signal) for signal in self.signals])
        self._seen = dict.fromkeys(state.seen)
        self._warned = set(state.warned)
        self._cycle, self._has_cycles = state.cycle, state.has_cycles
        self._has_progress = state.has_progress
        self._last_time, self._baseline = state.last_time, state.baseline


def load(settings: DriftSettings, data: bytes | None) -> Detector:
    """Return the detector that ``dump`` returned the state of.

    State of another version, or that is damaged, is left out: the detector starts over.
    """
    if data is None:
        return Detector(settings)
    try:
        return Detector(settings, msgspec.msgpack.decode(data, type=ready(DetectorState)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Detector(settings)
