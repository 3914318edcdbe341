"""Each signal by name: what it finds, what just misses it, and the work that only looks alike."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mulligan.drift.detector import Alarm, Detector
from mulligan.drift.observation import ACTION, CYCLE, MESSAGE, PROGRESS, Observation, near
from mulligan.drift.registry import names
from mulligan.drift.settings import DriftSettings


def act(
    name: str = "search",
    text: str = "x",
    result: str = "y",
    *,
    failed: bool = False,
    time: float | None = None,
) -> Observation:
    return Observation(ACTION, 0, "agent", name, text, result, failed, time)


def say(text: str) -> Observation:
    return Observation(MESSAGE, 0, "agent", "respond", text)


def cycle(seconds: float | None = None, time: float | None = None) -> Observation:
    return Observation(CYCLE, 0, "agent", seconds=seconds, time=time)


def progress(key: str, content: str, name: str = "state", *, back: bool = False) -> Observation:
    return Observation(PROGRESS, 0, "agent", name, key, content, back)


def watched(steps: Iterable[Observation], **settings: object) -> list[Alarm]:
    """Return the alarms of a run; every step has the next seq."""
    detector = Detector(DriftSettings(**settings))  # type: ignore[arg-type]
    found: list[Alarm] = []
    for seq, step in enumerate(steps, 1):
        fields = {f: getattr(step, f) for f in step.__struct_fields__}
        found += detector.observe(Observation(**{**fields, "seq": seq}))
    return found


def raised(name: str, steps: Iterable[Observation], **settings: object) -> list[Alarm]:
    return [alarm for alarm in watched(steps, **settings) if alarm.signal == name]


def new_work(count: int, start: int = 0) -> list[Observation]:
    return [act("read", f"file {n}", f"text {n}") for n in range(start, start + count)]


class TestSameResult:
    def test_the_fourth_time_is_an_alarm(self) -> None:
        [alarm] = raised("same_result", [act()] * 4)
        assert alarm.acts
        assert alarm.evidence == (1, 2, 3, 4)
        assert alarm.why == "'search' was called 4 times and returned the same every time"

    def test_three_times_are_not(self) -> None:
        assert watched([act()] * 3) == []

    def test_other_words_for_the_same_arguments_count(self) -> None:
        forms = ['{"q": "Cats"}', "{'q':  'cats'}", "CATS q", "q=cats 2026-11-18T07:00:00Z"]
        assert raised("same_result", [act(text=form) for form in forms])

    def test_polling_with_changing_output_is_not_a_loop(self) -> None:
        assert watched([act("status", "job 7", f"{n} %") for n in range(50)]) == []

    def test_polling_whose_output_differs_by_its_time_is_not_a_loop(self) -> None:
        assert watched([act("tail", "log", f"12:{n:02}:00 building") for n in range(50)]) == []

    def test_tests_that_pass_after_each_edit_are_not_a_loop(self) -> None:
        tests = act("tests", "all", "12 passed")
        steps = [s for n in range(20) for s in (act("edit", f"file_{n}", "ok"), tests)]
        assert watched(steps) == []

    def test_batch_edits_that_look_alike_are_not_a_loop(self) -> None:
        assert watched([act("edit", f"src/module_{n}.py foo bar", "ok") for n in range(50)]) == []


class TestSameFailure:
    def test_the_third_failure_with_like_arguments_is_an_alarm(self) -> None:
        steps = [act(failed=True, result=f"strange {n}") for n in range(3)]
        [alarm] = raised("same_failure", steps)
        assert alarm.evidence == (1, 2, 3)
        assert alarm.why == "'search' failed 3 times in a row: strange 2"

    def test_the_third_failure_with_a_like_error_is_an_alarm(self) -> None:
        errors = [f"TypeError: unexpected argument '{word}'" for word in ("a", "b", "c")]
        steps = [act(text=f"try {n}", result=e, failed=True) for n, e in enumerate(errors)]
        assert raised("same_failure", steps)

    def test_other_work_in_between_does_not_hide_it(self) -> None:
        bad = act("page_down", "{}", "TypeError: no", failed=True)
        assert raised("same_failure", [bad, *new_work(2), bad, *new_work(2, 2), bad])

    def test_a_retry_that_succeeds_is_no_alarm(self) -> None:
        steps = []
        for n in range(10):
            steps += [act(text=f"page {n}", result="503", failed=True)] * 2
            steps.append(act(text=f"page {n}", result=f"text {n}"))
        assert watched(steps) == []

    def test_one_tool_that_fails_in_different_ways_is_no_alarm(self) -> None:
        steps = [
            act("bash", "make", "make: no rule to build it", failed=True),
            act("bash", "ls /x", "ls: cannot access the place", failed=True),
            act("bash", "pytest", "three tests were not good", failed=True),
        ]
        assert watched(steps) == []


class TestSameMessage:
    def test_the_third_time_is_an_alarm(self) -> None:
        [alarm] = raised(
            "same_message", [say("I will look."), say("i will look"), say("I will look!")]
        )
        assert alarm.evidence == (1, 2, 3)

    def test_an_action_in_between_starts_over(self) -> None:
        steps = [say("Next."), say("Next."), act(), say("Next."), say("Next.")]
        assert raised("same_message", steps) == []

    def test_messages_that_differ_are_no_alarm(self) -> None:
        assert watched([say(f"Step {n} is done.") for n in range(20)]) == []


class TestAlternation:
    def test_six_steps_are_an_alarm(self) -> None:
        pair = [act("open", "a", "1"), act("close", "a", "2")]
        [alarm] = raised("alternation", pair * 3)
        assert alarm.evidence == (1, 2, 3, 4, 5, 6)
        assert "'open' and 'close' alternate for 6 steps" in alarm.why

    def test_five_steps_are_not(self) -> None:
        pair = [act("open", "a", "1"), act("close", "a", "2")]
        assert watched((pair * 3)[:5]) == []

    def test_edit_and_test_with_other_results_are_no_alternation(self) -> None:
        steps = [
            step
            for n in range(10)
            for step in (act("edit", f"fix {n}", "ok"), act("test", "", f"{n} failed"))
        ]
        assert watched(steps) == []


class TestPeriodic:
    @pytest.mark.parametrize("period", range(3, 9))
    def test_three_rounds_are_an_alarm(self, period: int) -> None:
        loop = [act(f"tool_{n}", "a", "b") for n in range(period)]
        [alarm] = raised("periodic", loop * 3)
        assert alarm.seq == 3 * period
        assert alarm.why.startswith(f"a loop of {period} actions")

    def test_two_rounds_are_not(self) -> None:
        loop = [act(f"tool_{n}", "a", "b") for n in range(5)]
        assert watched(loop * 2) == []

    def test_a_loop_that_reads_something_new_each_time_is_not(self) -> None:
        steps = [
            step
            for n in range(10)
            for step in (act("next"), act("read", "it", f"item {n}"), act("file", f"as {n}", "ok"))
        ]
        assert raised("periodic", steps) == []


class TestErrors:
    def failing(self, share: float, count: int = 20) -> list[Observation]:
        bad = round(share * 10)
        return [
            act(f"tool_{n % 7}", f"call {n}", f"text {n} said so", failed=n % 10 < bad)
            for n in range(count)
        ]

    def test_half_of_the_actions_is_an_alarm(self) -> None:
        found = raised("errors", self.failing(0.6), same_failure=1000)
        assert [alarm.acts for alarm in found][-1]

    def test_a_fifth_is_a_warning(self) -> None:
        found = raised("errors", self.failing(0.3), same_failure=1000)
        assert [alarm.acts for alarm in found] == [False]

    def test_a_tenth_is_nothing(self) -> None:
        assert watched(self.failing(0.1)) == []

    def test_failures_whose_retry_succeeds_are_forgiven(self) -> None:
        steps = []
        for n in range(15):
            steps += [act("get", f"page {n}", "503", failed=True)] * 2
            steps.append(act("get", f"page {n}", f"text {n}"))
        assert watched(steps) == []


class TestStall:
    def test_thirty_cycles_without_progress_are_an_alarm(self) -> None:
        work = [progress("done", "1"), *new_work(30)]
        [alarm] = raised("stall", work, baseline=0)
        assert alarm.why == "nothing got further in 30 cycles with 30 actions"

    def test_progress_in_time_is_not(self) -> None:
        work = [*new_work(29), progress("done", "1"), *new_work(29, 29)]
        assert raised("stall", [progress("done", "0"), *work]) == []

    def test_a_run_that_records_no_progress_gets_further_by_new_results(self) -> None:
        assert raised("stall", new_work(200)) == []

    def test_known_steps_in_any_order_are_a_stall(self) -> None:
        known = new_work(12)
        steps = known + [known[(n * n * 7 + n) % 12] for n in range(60)]
        assert raised("stall", steps, same_result=1000)

    def test_an_agent_that_waits_without_acting_is_not_stalled(self) -> None:
        waits = [cycle(time=60.0 * n) for n in range(500)]
        assert raised("stall", [progress("done", "1"), *waits]) == []

    def test_half_an_hour_of_actions_is_an_alarm(self) -> None:
        steps = [act("read", f"f {n}", f"t {n}", time=300.0 * n) for n in range(1, 10)]
        assert raised("stall", [progress("done", "1"), *steps], baseline=0)

    def test_a_session_that_is_slow_from_the_start_gets_more_time(self) -> None:
        slow = [
            step for n in range(10) for step in (progress("done", str(n)), *new_work(20, 100 * n))
        ]
        late = [progress("done", "last"), *new_work(45, 5000)]
        assert raised("stall", [*slow, *late], baseline=40) == []
        assert raised("stall", [*slow, *late], baseline=0)

    def test_an_old_content_is_no_progress(self) -> None:
        flips = [s for n in range(40) for s in (progress("f", "ab"[n % 2]), *new_work(1, n))]
        assert raised("stall", flips, backwards=1000)


class TestBackwards:
    def test_files_that_flip_between_two_contents_are_an_alarm(self) -> None:
        [alarm] = raised("backwards", [progress("tree", "ab"[n % 2], "files") for n in range(5)])
        assert alarm.why == "progress went backwards 3 times, last files tree"

    def test_tasks_that_are_opened_again_are_an_alarm(self) -> None:
        steps = [progress(f"t{n}", "pending", "task", back=True) for n in range(3)]
        assert raised("backwards", steps)

    def test_one_revert_is_not(self) -> None:
        assert watched([progress("tree", c, "files") for c in "abacd"]) == []

    def test_reverts_long_apart_are_not(self) -> None:
        steps = [s for n in range(6) for s in (progress("t", "ab"[n % 2]), *new_work(60, 60 * n))]
        assert raised("backwards", steps) == []


class TestCycles:
    def test_the_301st_cycle_is_a_warning(self) -> None:
        [alarm] = watched([cycle() for _ in range(301)])
        assert (alarm.signal, alarm.acts, alarm.seq) == ("cycles", False, 301)

    def test_the_300th_is_not(self) -> None:
        assert watched([cycle() for _ in range(300)]) == []


class TestAge:
    def test_two_hours_are_a_warning(self) -> None:
        found = watched([cycle(time=60.0 * n) for n in range(121)])
        assert [(a.signal, a.acts, a.seq) for a in found] == [("age", False, 121)]

    def test_a_run_without_a_clock_has_no_age(self) -> None:
        assert watched([cycle() for _ in range(200)]) == []


class TestSlowing:
    def test_half_as_slow_again_is_a_warning(self) -> None:
        [alarm] = watched([cycle(2.0)] * 10 + [cycle(3.1)] * 10)
        assert (alarm.signal, alarm.acts) == ("slowing", False)
        assert alarm.why == "the last 10 cycles took 3.1 s in the median, those before 2.0 s"

    def test_a_little_slower_is_not(self) -> None:
        assert watched([cycle(2.0)] * 10 + [cycle(2.9)] * 10) == []

    def test_cycles_of_milliseconds_are_not_judged(self) -> None:
        assert watched([cycle(0.01)] * 10 + [cycle(0.1)] * 10) == []

    def test_one_slow_cycle_is_not(self) -> None:
        assert watched([cycle(2.0)] * 15 + [cycle(90.0)] + [cycle(2.0)] * 15) == []


class TestContextGrowth:
    def grown(self, *sizes: int) -> list[Observation]:
        return [Observation(MESSAGE, 0, "a", text=f"say {n}", context=n) for n in sizes]

    def test_three_times_the_size_without_progress_is_a_warning(self) -> None:
        [alarm] = watched(self.grown(10_000, 20_000, 31_000))
        assert (alarm.signal, alarm.acts) == ("context_growth", False)
        assert alarm.why == "the context grew from 10000 to 31000 without any progress"

    def test_growth_with_progress_is_not(self) -> None:
        one, two, three = self.grown(10_000, 20_000, 31_000)
        assert watched([one, two, progress("done", "1"), three]) == []

    def test_a_small_context_may_grow(self) -> None:
        assert watched(self.grown(500, 2_000, 6_000)) == []


class TestGoalDistance:
    def test_it_is_off_without_a_goal(self) -> None:
        assert watched(new_work(40)) == []

    def test_other_words_than_the_goal_are_a_warning(self) -> None:
        found = raised("goal_distance", new_work(25), goal="translate the manual into French")
        assert [alarm.acts for alarm in found] == [False]

    def test_words_of_the_goal_are_not(self) -> None:
        steps = [act("edit", f"translate manual page {n}", "into French: the") for n in range(25)]
        assert raised("goal_distance", steps, goal="translate the manual into French") == []


def test_every_signal_has_its_tests() -> None:
    tested = {name.removeprefix("Test") for name in globals() if name.startswith("Test")}
    assert {name.replace("_", "") for name in names()} == {name.lower() for name in tested}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ls -la /tmp/tmpab12cd34", "ls -la /tmp/tmpzz99yy88"),
        ("at 0xdeadbeef", "at 0x1234"),
        ("Search: Cats & Dogs", "search dogs cats"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174000"),
    ],
)
def test_texts_that_differ_in_form_are_near(one: str, other: str) -> None:
    assert near(one) == near(other)


@pytest.mark.parametrize(
    ("one", "other"), [("file_1.py", "file_2.py"), ("page 3", "page 4"), ("{}", "[]"), ("a", "b")]
)
def test_texts_that_name_other_things_are_not_near(one: str, other: str) -> None:
    assert near(one) != near(other)
