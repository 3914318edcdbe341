"""The detector, whatever a run is like: its state is complete, its evidence is used once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mulligan.drift.detector import Detector, load
from mulligan.drift.observation import ACTION, CYCLE, MESSAGE, PROGRESS, RESET, Observation
from mulligan.drift.settings import DriftSettings

SETTINGS = DriftSettings(baseline=5, stall_cycles=6, cycles=10)

words = st.sampled_from(["a", "b", "c"])
steps = st.builds(
    Observation,
    kind=st.sampled_from([ACTION, ACTION, ACTION, MESSAGE, PROGRESS, CYCLE, RESET]),
    seq=st.just(0),
    actor=st.just("agent"),
    name=words,
    text=words,
    result=words,
    failed=st.booleans(),
    time=st.one_of(st.none(), st.floats(0, 1e5)),
    seconds=st.one_of(st.none(), st.floats(0, 100)),
    context=st.one_of(st.none(), st.integers(0, 10**6)),
)


def numbered(run: list[Observation]) -> list[Observation]:
    fields = Observation.__struct_fields__
    return [
        Observation(**{**{f: getattr(one, f) for f in fields}, "seq": n})
        for n, one in enumerate(run, 1)
    ]


@given(st.lists(steps, max_size=60), st.integers(0, 60))
def test_a_detector_that_was_loaded_is_the_same(run: list[Observation], cut: int) -> None:
    whole, parts = Detector(SETTINGS), Detector(SETTINGS)
    for n, step in enumerate(numbered(run)):
        if n == cut:
            parts = load(SETTINGS, parts.dump())
        assert parts.observe(step) == whole.observe(step)
    assert parts.dump() == whole.dump()


@given(st.lists(steps, max_size=80))
def test_evidence_for_a_response_is_used_once(run: list[Observation]) -> None:
    detector = Detector(SETTINGS)
    last = 0
    for step in numbered(run):
        found = [alarm for alarm in detector.observe(step) if alarm.acts]
        assert len(found) <= 1
        for alarm in found:
            assert all(last < seq <= step.seq for seq in alarm.evidence)
            assert 0.5 <= alarm.score <= 1
            assert alarm.why
        if found:
            last = step.seq
        assert 0 <= detector.score <= 1
