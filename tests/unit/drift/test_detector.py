"""The detector: spent evidence, calibration, resets, and a state that survives the process."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from mulligan.drift import registry
from mulligan.drift.detector import Alarm, Detector, load
from mulligan.drift.observation import ACTION, KINDS, RESET, Observation
from mulligan.drift.replay import replay
from mulligan.drift.settings import DriftSettings
from mulligan.drift.signals.signal import Signal, Step
from mulligan.drift.trace import observed
from mulligan.errors import InvalidSignal
from mulligan.testing.planted import DECOYS, DRIFT, clean_run, decoy, plant

SETTINGS = DriftSettings()


def act(seq: int, text: str = "x", result: str = "y", *, failed: bool = False) -> Observation:
    return Observation(ACTION, seq, "agent", "search", text, result, failed)


def test_the_same_evidence_is_never_used_twice() -> None:
    detector = Detector(SETTINGS)
    alarms = [alarm for seq in range(1, 40) for alarm in detector.observe(act(seq))]
    used = [seq for alarm in alarms for seq in alarm.evidence]
    assert len(alarms) == 39 // 4
    assert len(used) == len(set(used))


def test_an_alarm_of_one_signal_spends_the_evidence_of_the_others() -> None:
    detector = Detector(SETTINGS)
    pair = [act(1, "a", "1"), act(2, "b", "2")] * 3
    alarms = [alarm for step in pair for alarm in detector.observe(step)]
    assert [alarm.signal for alarm in alarms] == ["alternation"]
    assert detector.score == 0.0


def test_two_signals_at_once_are_one_alarm() -> None:
    """The fourth failure of a kind is also the same result for the fourth time."""
    detector = Detector(DriftSettings(same_failure=4))
    alarms = [a for seq in range(1, 9) for a in detector.observe(act(seq, failed=True))]
    assert [alarm.evidence for alarm in alarms] == [(1, 2, 3, 4), (5, 6, 7, 8)]


def test_a_reset_forgets_the_counts() -> None:
    detector = Detector(SETTINGS)
    for seq in range(3):
        detector.observe(act(seq))
    assert detector.observe(Observation(RESET, 4)) == []
    assert [detector.observe(act(seq)) for seq in (5, 6, 7)] == [[], [], []]
    assert detector.observe(act(8)) != []


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_detector_goes_on_from_its_state(cut: int) -> None:
    run = plant(clean_run(5, 40), "periodic", 3, SETTINGS).trace
    whole, parts = Detector(SETTINGS), Detector(SETTINGS)
    expected = [alarm for step in run.steps for alarm in whole.observe(observed(step))]
    found = []
    for n, step in enumerate(run.steps):
        if n == cut:
            parts = load(SETTINGS, parts.dump())
        found += parts.observe(observed(step))
    assert found == expected
    assert parts.dump() == whole.dump()


@pytest.mark.parametrize("data", [b"", b"\x00", b"not a state", msgspec.msgpack.encode({"v": 1})])
def test_a_state_that_cannot_be_read_starts_over(data: bytes) -> None:
    assert load(SETTINGS, data).dump() == Detector(SETTINGS).dump()


def test_a_state_of_another_version_starts_over() -> None:
    detector = Detector(SETTINGS)
    detector.observe(act(1))
    state = msgspec.msgpack.decode(detector.dump())
    newer = msgspec.msgpack.encode({**state, "version": 99})
    assert load(SETTINGS, newer).dump() == Detector(SETTINGS).dump()


def test_a_signal_that_is_off_is_not_asked() -> None:
    detector = Detector(DriftSettings(off=("same_result", "stall")))
    alarms = [alarm for seq in range(40) for alarm in detector.observe(act(seq))]
    assert alarms == []


def test_what_is_usual_is_kept_across_a_reset() -> None:
    detector = Detector(DriftSettings(baseline=20, same_failure=1000))
    for n in range(20):
        detector.observe(act(n, f"call {n}", f"result {n}", failed=n % 5 in (1, 3)))
    detector.observe(Observation(RESET, 20))
    assert _errors_above_half(detector) == []
    assert _errors_above_half(Detector(DriftSettings(same_failure=1000))) != []


def _errors_above_half(detector: Detector) -> list[Alarm]:
    steps = [
        act(n, f"call {n}", f"result {n}", failed=n % 11 in (1, 3, 5, 7, 9, 10)) for n in range(60)
    ]
    return [alarm for step in steps for alarm in detector.observe(step) if alarm.acts]


def test_the_memory_and_the_state_stay_small() -> None:
    detector = Detector(SETTINGS)
    for n in range(3_000):
        detector.observe(act(n, f"{n}", f"{n * n}", failed=n % 9 == 0))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(3_000, 6_000):
        detector.observe(act(n, f"{n}", f"{n * n}", failed=n % 9 == 0))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 500_000  # the windows are full: what is new replaces what is old
    assert len(detector.dump()) < 50_000


@pytest.mark.parametrize("kind", DRIFT)
def test_planted_drift_is_found_in_time(kind: str) -> None:
    for seed in range(5):
        made = plant(clean_run(seed), kind, seed, SETTINGS)
        found = replay(made.trace, SETTINGS)
        assert found.fired_at is not None
        assert made.start <= found.fired_at <= made.found_by, seed


@pytest.mark.parametrize("kind", DECOYS)
def test_a_decoy_is_no_alarm(kind: str) -> None:
    for seed in range(5):
        made = decoy(clean_run(seed), kind, seed, SETTINGS)
        assert replay(made.trace, SETTINGS).alarms == (), seed


@pytest.mark.parametrize("kind", registry.BUILT_IN, ids=lambda kind: kind.name)
def test_a_signal_ignores_the_kinds_that_it_does_not_take(kind: type[Signal]) -> None:
    """The detector does not even offer them."""
    made = plant(clean_run(3), "alternation", 3, SETTINGS)
    detector = Detector(SETTINGS)
    signal = next(signal for signal in detector.signals if signal.name == kind.name)
    for seen in map(observed, made.trace.steps):
        detector.observe(seen)
        for other in set(KINDS) - set(kind.takes) - {RESET}:
            before = msgspec.msgpack.encode(signal.dump())
            step = detector._step(msgspec.structs.replace(seen, kind=other, seconds=2.0))
            signal.observe(step, SETTINGS)
            assert msgspec.msgpack.encode(signal.dump()) == before


class Third(Signal):
    """Every third action is one too many."""

    name = "third"
    count: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        self.count += step.seen.kind == ACTION
        self.level, self.evidence = self.count / 3, [step.seen.seq]

    def why(self) -> str:
        return "that is the third"

    def spend(self) -> None:
        super().spend()
        self.count = 0


class Failing(Third):
    """A signal with a mistake in it."""

    name = "failing"

    def observe(self, step: Step, settings: DriftSettings) -> None:
        raise KeyError("oh")


class _Point:
    def __init__(self, name: str, made: object) -> None:
        self.name, self._made = name, made

    def load(self) -> object:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def install(monkeypatch: pytest.MonkeyPatch, *points: _Point) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    registry.signals.cache_clear()


@pytest.fixture(autouse=True)
def _built_in_only() -> None:
    registry.signals.cache_clear()


def test_an_installed_signal_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _Point("third", Third))
    detector = Detector(SETTINGS)
    alarms = [a for n in range(6) for a in detector.observe(act(n, f"{n}", f"{n}"))]
    assert [(alarm.signal, alarm.seq) for alarm in alarms] == [("third", 2), ("third", 5)]
    registry.signals.cache_clear()


def test_an_installed_signal_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _Point("failing", Failing))
    with pytest.raises(InvalidSignal, match="The signal 'failing' failed: KeyError: 'oh'"):
        Detector(SETTINGS).observe(act(1))
    Detector(DriftSettings(off=("failing",))).observe(act(1))


@pytest.mark.parametrize(
    "made", [ImportError("no such module"), int, type("Twin", (Third,), {"name": "stall"})]
)
def test_an_installed_signal_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, made: object
) -> None:
    install(monkeypatch, _Point("bad", made))
    with pytest.raises(InvalidSignal, match="bad"):
        registry.signals()
