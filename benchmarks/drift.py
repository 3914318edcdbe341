"""Drift: the detector on labelled runs, on planted drift and decoys, and its cost per event.

``python -m benchmarks.drift DATA [--scorer FILE]`` takes runs in the neutral format and the scorer
that judges them, by default ``score.py`` beside the data. Without DATA, only what needs no labels
is measured. The data stay outside of this repository.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from benchmarks import harness
from benchmarks.drift_learned import learned_rows
from benchmarks.harness import Result, Row, Setting, Table, Target
from mulligan.drift.detector import Detector
from mulligan.drift.replay import Replay, replay
from mulligan.drift.settings import DriftSettings
from mulligan.drift.trace import Trace, observed, read_traces
from mulligan.testing.planted import DECOYS, DRIFT, clean_run, decoy, plant

COST_TARGETS = (
    Target("us/event", "processor time per event", at_most=50.0, unit=" µs"),
    Target("mb/session", "memory of a session after 100,000 events", at_most=5.0, unit=" MB"),
    Target("planted found", "planted drift found in time", at_least=1.0),
    Target("decoys alarmed", "decoys alarmed", at_most=0.0),
)
LABEL_TARGETS = (
    Target("false trail", "false alarms per 100 steps, trail-gaia", at_most=0.5),
    Target("false tau", "false alarms per 100 steps, tau-airline", at_most=0.5),
    Target("then - repeat", "positive runs alarmed in time beyond `repeat`", at_least=0.01),
    Target("false - repeat", "false alarms beyond `repeat`, per 100 steps", at_most=0.0),
)

MAIN = {"trail": "trail-gaia: resource abuse", "tau": "tau-airline: failure"}
FOLDS = 5
GRID: dict[str, tuple[Any, ...]] = {
    "same_failure": (2, 3, 4),
    "same_result": (3, 4, 5),
    "error_rate": (0.4, 0.5, 0.6),
}

EVENTS = 100_000
RUNS_PER_KIND = 60


class Data(msgspec.Struct, frozen=True):
    """The labelled runs, and the scorer that judges them."""

    runs: list[Trace]
    labelled: list[dict[str, Any]]
    scorer: ModuleType


def load_data(file: Path, scorer: Path) -> Data:
    """Return the runs of a file twice: as the detector reads them, and as the scorer does."""
    found = importlib.util.spec_from_file_location("drift_scorer", scorer)
    if found is None or found.loader is None:
        raise SystemExit(f"{scorer} is no scorer")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return Data(list(read_traces(file)), list(module.read(str(file))), module)


def measured(data: Data | None) -> Callable[[Setting], Result]:
    """Return the benchmark over these runs."""

    def run(setting: Setting) -> Result:
        result = Result()
        _cost(result, setting.choose(EVENTS, EVENTS // 10))
        runs = data.runs if data else [clean_run(seed) for seed in range(RUNS_PER_KIND)]
        _planted(result, runs, setting.choose(5, 1))
        if data is not None:
            _labelled(result, data)
            result.tables.append(_cross_validated(data))
            result.tables.append(learned_rows(data.runs, data.labelled, data.scorer))
        return result

    return run


# The cost


def _cost(result: Result, events: int) -> None:
    settings = DriftSettings()
    seen = [observed(step) for seed in range(50) for step in clean_run(seed, 40).steps]
    detector = Detector(settings)
    began = time.process_time()
    for n in range(events):
        detector.observe(msgspec.structs.replace(seen[n % len(seen)], seq=n))
    spent = time.process_time() - began
    replaced = _seconds_of_replace(seen[0], events)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    other = Detector(settings)
    for n in range(events):
        text = f"call {n} of {random.Random(n).random()}"
        other.observe(msgspec.structs.replace(seen[n % len(seen)], seq=n, text=text))
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    micro = 1e6 * max(0.0, spent - replaced) / events
    result.measure("us/event", micro)
    result.measure("mb/session", size / 1e6)
    row: Row = {
        "events": events,
        "µs per event": micro,
        "MB": size / 1e6,
        "state in bytes": len(other.dump()),
    }
    result.tables.append(Table("cost of one session", [row], ["processor time, not wall time"]))


def _seconds_of_replace(one: Any, events: int) -> float:
    began = time.process_time()
    for n in range(events):
        msgspec.structs.replace(one, seq=n)
    return time.process_time() - began


# Planted drift


def _planted(result: Result, runs: Sequence[Trace], seeds: int) -> None:
    settings = DriftSettings()
    clean = [run for run in runs if replay(run, settings).fired_at is None]
    rows: list[Row] = []
    found = planted = alarmed = 0
    for kind in DRIFT:
        made = [plant(run, kind, seed, settings) for run in clean for seed in range(seeds)]
        steps = [_first(replay(one.trace, settings), one.start, one.found_by) for one in made]
        hits = sum(step is not None for step in steps)
        found, planted = found + hits, planted + len(made)
        rows.append({"planted": kind, "runs": len(made), "found in time": hits})
    for kind in DECOYS:
        made = [decoy(run, kind, seed, settings) for run in clean for seed in range(seeds)]
        wrong = sum(replay(one.trace, settings).fired_at is not None for one in made)
        alarmed += wrong
        rows.append({"planted": f"decoy: {kind}", "runs": len(made), "alarmed": wrong})
    result.measure("planted found", found / max(1, planted))
    result.measure("decoys alarmed", float(alarmed))
    note = "in time: within two repetitions beyond the threshold"
    result.tables.append(Table(f"planted into {len(clean)} runs without an alarm", rows, [note]))


def _first(found: Replay, start: int, end: int) -> int | None:
    steps = [alarm.seq for alarm in found.alarms if alarm.acts and start <= alarm.seq <= end]
    return min(steps, default=None)


# The labels


def _predictions(data: Data, settings: DriftSettings) -> dict[str, dict[str, Any]]:
    found = (replay(run, settings) for run in data.runs)
    return {one.id: {"score": one.score, "fired_at": one.fired_at} for one in found}


def _labelled(result: Result, data: Data) -> None:
    ours = dict(data.scorer.views(data.labelled, _predictions(data, DriftSettings())))
    rows: list[Row] = [_label_row("detector", title, found) for title, found in ours.items()]
    for kind in ("repeat", "errors", "length"):
        made = {run["id"]: data.scorer.baseline(run, kind) for run in data.labelled}
        theirs = dict(data.scorer.views(data.labelled, made))
        rows += [
            _label_row(kind, MAIN[key], theirs[MAIN[key]]) for key in MAIN if MAIN[key] in theirs
        ]
        if kind == "repeat":
            _beside(result, ours, theirs)
    notes = [
        "AUC with 95 % intervals over tasks; 'len' is the AUC of the plain number of steps",
        "'in time': alarmed by the annotated step; after the slash, clean runs of the same age",
    ]
    result.tables.append(Table("labelled runs", rows, notes))


def _beside(result: Result, ours: dict[str, Any], repeat: dict[str, Any]) -> None:
    for key, title in MAIN.items():
        if title in ours:
            result.measure(f"false {key}", ours[title]["false_per_100_steps"])
    present = [title for title in MAIN.values() if title in ours]
    beyond = [
        ours[title]["false_per_100_steps"] - repeat[title]["false_per_100_steps"]
        for title in present
    ]
    result.measure("false - repeat", max(beyond, default=None))
    if (title := MAIN["trail"]) in ours:
        result.measure("then - repeat", ours[title]["then_hit"] - repeat[title]["then_hit"])


def _label_row(who: str, title: str, found: dict[str, Any]) -> Row:
    show = _show
    in_time = f"{show(found['then_hit'])}/{show(found['then_clean'])}"
    return {
        "alarms by": who,
        "runs": title.strip(),
        "n/pos": f"{found['runs']}/{found['positive']}",
        "AUC": _with_interval(found, "auc"),
        "len": show(found["auc_length"]),
        "matched": _with_interval(found, "matched"),
        "hit/false": f"{show(found['hit'])}/{show(found['false_share'])}",
        "per 100": show(found["false_per_100_steps"]),
        "in time": in_time if found["then_runs"] else "–",
    }


def _with_interval(found: dict[str, Any], name: str) -> str:
    value = found["auc" if name == "auc" else "matched_auc"]
    return f"{_show(value)} [{_show(found[f'{name}_low'])}–{_show(found[f'{name}_high'])}]"


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# Cross-validation of the thresholds


def _cross_validated(data: Data) -> Table:
    """Choose thresholds on four fifths of the tasks, and judge them on the rest."""
    grid = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    made = [_predictions(data, DriftSettings(**chosen)) for chosen in grid]
    groups = sorted({run["group"] for run in data.labelled})
    random.Random(13).shuffle(groups)
    rows: list[Row] = []
    totals = [0, 0, 0, 0]
    for fold in range(FOLDS):
        held = set(groups[fold::FOLDS])
        train = [run for run in data.labelled if run["group"] not in held]
        rest = [run for run in data.labelled if run["group"] in held]
        best = max(range(len(grid)), key=lambda n: _worth(train, made[n], grid[n]))
        tally = _tally(rest, made[best])
        totals = [a + b for a, b in zip(totals, tally, strict=True)]
        rows.append({"fold": str(fold + 1), **_named(grid[best]), **_shown(tally)})
    rows.append({"fold": "all", **_shown(totals)})
    default = _tally(data.labelled, _predictions(data, DriftSettings()))
    rows.append({"fold": "defaults, all runs", **_shown(default)})
    notes = [
        "chosen on the other folds: most runs alarmed in time, at ≤ 0.5 false alarms per 100 steps"
        " of each source; of equally good ones, those nearest to the defaults",
        f"without any effect on these runs: {', '.join(_idle(data, grid, made)) or 'none'}",
    ]
    return Table("thresholds by cross-validation", rows, notes)


def _idle(data: Data, grid: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[str]:
    """Return the thresholds that change no figure, whatever the others are."""
    found = []
    for key in GRID:
        groups: dict[str, set[str]] = {}
        for chosen, predictions in zip(grid, made, strict=True):
            others = json.dumps({k: v for k, v in chosen.items() if k != key})
            groups.setdefault(others, set()).add(str(_tally(data.labelled, predictions)))
        if all(len(tallies) == 1 for tallies in groups.values()):
            found.append(key)
    return found


def _tally(runs: Sequence[dict[str, Any]], made: dict[str, dict[str, Any]]) -> list[int]:
    """Return annotated positives, those alarmed in time, false alarms, and steps of clean runs."""
    counts = [0, 0, 0, 0]
    for run in runs:
        fired, abuse = made[run["id"]]["fired_at"], run["labels"].get("resource_abuse")
        steps = run["labels"].get("resource_abuse_steps")
        is_clean = run["labels"].get("success") if abuse is None else not abuse
        if abuse and steps:
            counts[0] += 1
            counts[1] += fired is not None and fired <= steps[0]
        elif is_clean:
            counts[2] += fired is not None
            counts[3] += len(run["steps"])
    return counts


def _worth(
    runs: Sequence[dict[str, Any]], made: dict[str, dict[str, Any]], chosen: dict[str, Any]
) -> tuple[bool, int, int, int]:
    """Return what thresholds are compared by: few false alarms, hits, and the defaults."""
    default, tally = DriftSettings(), _tally(runs, made)
    sources = {run["source"] for run in runs}
    apart = [_tally([run for run in runs if run["source"] == one], made) for one in sources]
    is_quiet = all(100 * false <= 0.5 * steps for _, _, false, steps in apart)
    kept = sum(getattr(default, key) == value for key, value in chosen.items())
    return is_quiet, tally[1], -tally[2], kept


def _named(chosen: dict[str, Any]) -> Row:
    return {key: str(value) for key, value in chosen.items()}


def _shown(tally: Sequence[int]) -> Row:
    per = f"{100 * tally[2] / max(1, tally[3]):.2f}"
    return {"in time": f"{tally[1]} of {tally[0]}", "false": tally[2], "per 100": per}


def benchmark(data: Data | None) -> harness.Benchmark:
    """Return the benchmark with the targets that can be measured."""
    targets = (*COST_TARGETS, *(LABEL_TARGETS if data else ()))
    return harness.Benchmark("drift", "Drift detection", targets, measured(data))


BENCHMARK = benchmark(None)


def main(argv: Sequence[str]) -> int:
    """Take the data from the command line, and leave the rest to the harness."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--scorer", type=Path)
    parser.add_argument("--write", type=Path, help="write the predictions here")
    known, rest = parser.parse_known_args(argv)
    if known.data is None:
        return harness.main(BENCHMARK, argv=rest)
    data = load_data(known.data, known.scorer or known.data.with_name("score.py"))
    if known.write:
        made = _predictions(data, DriftSettings())
        lines = (json.dumps({"id": name, **one}) + "\n" for name, one in made.items())
        known.write.write_text("".join(lines))
    return harness.main(benchmark(data), argv=rest)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
