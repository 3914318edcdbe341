"""A learned combination of the signals beside the rules, in cross-validation.

Logistic regression on the highest score that each signal has reached so far. It would be shipped,
with its weights in a text file, only if it beat the rules here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from benchmarks.harness import Row, Table
from mulligan.drift.replay import Replay, replay
from mulligan.drift.settings import DriftSettings
from mulligan.drift.trace import Trace

FOLDS = 5
ROUNDS = 400
RATE = 0.5
WEIGHT_DECAY = 0.01
MAX_FALSE_PER_100 = 0.5

Vector = list[float]


def learned_rows(
    runs: Sequence[Trace], labelled: list[dict[str, Any]], scorer: ModuleType
) -> Table:
    """Return how the learned combination does on runs it was not trained on, beside the rules."""
    settings = DriftSettings()
    found = {run.id: replay(run, settings) for run in runs}
    abuse = [run for run in labelled if run["labels"].get("resource_abuse") is not None]
    if not abuse:
        return Table("learned combination", [])
    learned = _cross_predicted(abuse, found)
    rules = {
        run["id"]: {"score": found[run["id"]].score, "fired_at": found[run["id"]].fired_at}
        for run in abuse
    }
    rows: list[Row] = []
    for who, made in (("rules", rules), ("learned, held-out folds", learned)):
        for title, judged in scorer.views(abuse, made):
            if title.startswith("trail-gaia: resource"):
                rows.append(_row(who, judged))
    note = f"logistic regression on the scores of the signals, {FOLDS} folds over tasks"
    return Table("learned combination, resource abuse", rows, [note])


def _row(who: str, judged: dict[str, Any]) -> Row:
    return {
        "combination": who,
        "AUC": f"{judged['auc']:.2f} [{judged['auc_low']:.2f}–{judged['auc_high']:.2f}]",
        "matched": f"{judged['matched_auc']:.2f}",
        "in time": f"{judged['then_hit']:.2f}/{judged['then_clean']:.2f}",
        "false per 100": f"{judged['false_per_100_steps']:.2f}",
    }


def _cross_predicted(
    runs: Sequence[dict[str, Any]], found: dict[str, Replay]
) -> dict[str, dict[str, Any]]:
    groups = sorted({run["group"] for run in runs})
    random.Random(13).shuffle(groups)
    made: dict[str, dict[str, Any]] = {}
    for fold in range(FOLDS):
        held = set(groups[fold::FOLDS])
        train = [run for run in runs if run["group"] not in held]
        weights = _trained(
            [_features(found[run["id"]])[-1] for run in train],
            [bool(run["labels"]["resource_abuse"]) for run in train],
        )
        limit = _limit(train, found, weights)
        for run in runs:
            if run["group"] in held:
                values = [_sigmoid(weights, one) for one in _features(found[run["id"]])]
                fired = next((n for n, value in enumerate(values) if value >= limit), None)
                made[run["id"]] = {"score": max(values), "fired_at": fired}
    return made


def _features(one: Replay) -> list[Vector]:
    """Return, for each step, the highest score of each signal so far, and 1 for the bias."""
    best = [0.0] * len(one.scores)
    made = []
    for step in range(one.steps):
        now = [scores[step] for scores in one.scores.values()]
        best = [max(a, b) for a, b in zip(best, now, strict=True)]
        made.append([*best, 1.0])
    return made


def _sigmoid(weights: Vector, features: Vector) -> float:
    total = sum(w * x for w, x in zip(weights, features, strict=True))
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, total))))


def _trained(rows: list[Vector], truths: list[bool]) -> Vector:
    weights = [0.0] * len(rows[0])
    for _ in range(ROUNDS):
        gradient = [WEIGHT_DECAY * w for w in weights]
        for features, truth in zip(rows, truths, strict=True):
            error = (_sigmoid(weights, features) - truth) / len(rows)
            gradient = [g + error * x for g, x in zip(gradient, features, strict=True)]
        weights = [w - RATE * g for w, g in zip(weights, gradient, strict=True)]
    return weights


def _limit(runs: Sequence[dict[str, Any]], found: dict[str, Replay], weights: Vector) -> float:
    """Return the lowest threshold with few enough false alarms on the runs of the training."""
    clean = [found[run["id"]] for run in runs if not run["labels"]["resource_abuse"]]
    best = sorted(
        (max(_sigmoid(weights, f) for f in _features(one)) for one in clean), reverse=True
    )
    steps = sum(one.steps for one in clean)
    allowed = int(MAX_FALSE_PER_100 * steps / 100)
    return best[allowed] + 1e-9 if allowed < len(best) else 0.0
