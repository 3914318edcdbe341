"""A recorded run through the detector, step by step."""

from __future__ import annotations

import msgspec

from mulligan.drift.detector import Alarm, Detector
from mulligan.drift.settings import DriftSettings
from mulligan.drift.trace import Trace, observed


class Replay(msgspec.Struct, frozen=True):
    """What the detector found in a run: ``scores`` of each signal after each step.

    ``score`` is the highest that all signals together reached, ``fired_at`` the step after which
    the first alarm came that calls for a response.
    """

    id: str
    steps: int
    score: float
    fired_at: int | None
    alarms: tuple[Alarm, ...]
    scores: dict[str, list[float]]


def replay(run: Trace, settings: DriftSettings) -> Replay:
    """Return what the detector finds; after a step it knows nothing of later ones."""
    detector = Detector(settings)
    scores: dict[str, list[float]] = {signal.name: [] for signal in detector.signals}
    alarms: list[Alarm] = []
    best = 0.0
    for step in run.steps:
        found = detector.observe(observed(step))
        now = detector.scores()
        # An alarm spends its evidence, so its score is gone from the signal by now.
        now.update({alarm.signal: alarm.score for alarm in found})
        for name, score in now.items():
            scores[name].append(score)
        best = max(best, detector.score, *(alarm.score for alarm in found if alarm.acts))
        alarms += found
    fired = next((alarm.seq for alarm in alarms if alarm.acts), None)
    return Replay(run.id, len(run.steps), best, fired, tuple(alarms), scores)
