"""Drift planted into recorded runs, and decoys that only look like it; every run has a seed.

``plant`` puts a loop, an alternation, a stall or something alike into a run at a random place, and
says by which step a detector has to have found it. ``decoy`` puts in work that looks alike and is
none: polling, retries that succeed, edits of one file after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from mulligan.drift.settings import DriftSettings
from mulligan.drift.trace import MODEL_PREFIX, SAID, Trace, TraceStep

EXTRA = 2
"""How many repetitions beyond the threshold a detector has."""


STEP_SECONDS = 5.0
"""How long a planted step takes, where a run has times."""


class Planted(msgspec.Struct, frozen=True):
    """A run with something planted: it starts at ``start`` and must be found up to ``found_by``."""

    kind: str
    trace: Trace
    start: int
    found_by: int


Steps = list[TraceStep]
Maker = Callable[[Sequence[TraceStep], Random, DriftSettings], Steps]


def plant(run: Trace, kind: str, seed: int, settings: DriftSettings) -> Planted:
    """Return a run with drift of a kind of ``DRIFT`` in it."""
    return _insert(run, kind, DRIFT[kind], seed, settings)


def decoy(run: Trace, kind: str, seed: int, settings: DriftSettings) -> Planted:
    """Return a run with work of a kind of ``DECOYS`` in it; no alarm may come of it."""
    return _insert(run, kind, DECOYS[kind], seed, settings)


def clean_run(seed: int, steps: int = 20) -> Trace:
    """Return a made-up run in which every step is new, to plant something into."""
    random = Random(seed)
    tools = ("read_file", "search", "edit", "run_tests", "list_files")
    made = [
        TraceStep(
            action=random.choice(tools),
            actor="agent",
            args=f'{{"target":"module_{n}_{random.randrange(1000)}"}}',
            result=f"output {n} of {random.randrange(10**6)}",
            t=STEP_SECONDS * n,
        )
        for n in range(steps)
    ]
    return Trace(f"clean-{seed}", _numbered(made), "made-up")


def _insert(run: Trace, kind: str, make: Maker, seed: int, settings: DriftSettings) -> Planted:
    random = Random(f"{run.id}/{kind}/{seed}")
    place = random.randint(0, len(run.steps))
    before, after = run.steps[:place], run.steps[place:]
    known = [step for step in before if not _is_said(step)] or [_any_step(random, 0)]
    made = make(known, random, settings)
    if random.random() < 0.5 and not any(map(_is_said, made)):
        made = _announced(made)
    made = _timed(made, before)
    acts = sum(not _is_said(step) for step in made)
    steps = _numbered([*before, *made, *_later(after, STEP_SECONDS * acts)])
    trace = msgspec.structs.replace(run, steps=steps)
    return Planted(kind, trace, place, place + len(made) - 1)


def _announced(steps: Sequence[TraceStep]) -> Steps:
    """Return steps with a message of the model before each, as some runs record them."""
    asked = [
        TraceStep(f"{MODEL_PREFIX}act", actor=step.actor, args=f"Next, call {n}: {step.action}")
        for n, step in enumerate(steps)
    ]
    return [step for pair in zip(asked, steps, strict=True) for step in pair]


def _is_said(step: TraceStep) -> bool:
    return step.action.startswith(MODEL_PREFIX) or step.action in SAID


def _numbered(steps: Sequence[TraceStep]) -> Steps:
    return [msgspec.structs.replace(step, i=n) for n, step in enumerate(steps)]


def _timed(steps: Sequence[TraceStep], before: Sequence[TraceStep]) -> Steps:
    """Return steps with times after those before them, if these have any."""
    last = before[-1].t if before else None
    if last is None:
        return [msgspec.structs.replace(step, t=None, ctx=None) for step in steps]
    made: Steps = []
    for step in steps:
        last += 0.0 if _is_said(step) else STEP_SECONDS
        made.append(msgspec.structs.replace(step, t=last, ctx=None))
    return made


def _later(steps: Sequence[TraceStep], seconds: float) -> Steps:
    return [
        step if step.t is None else msgspec.structs.replace(step, t=step.t + seconds)
        for step in steps
    ]


def _any_step(random: Random, number: int) -> TraceStep:
    word = f"{random.choice(('alpha', 'beta', 'gamma'))}_{number}_{random.randrange(1000)}"
    return TraceStep(
        action=random.choice(("read_file", "search", "list_files", "query")),
        actor="agent",
        args=f'{{"path":"{word}"}}',
        result=f"contents of {word}: {random.randrange(10**6)}",
    )


def _some(known: Sequence[TraceStep], random: Random, count: int) -> Steps:
    """Return different steps: of the run as far as it has them, and made up ones."""
    found = {(step.action, step.args): step for step in known if not step.error}
    chosen = random.sample(list(found.values()), min(count, len(found)))
    return chosen + [_any_step(random, n) for n in range(count - len(chosen))]


def _reworded(step: TraceStep, random: Random) -> TraceStep:
    """Return a step whose arguments are the same in another form."""
    forms = (
        step.args,
        step.args.upper() if "\\" not in step.args else step.args,
        f" {step.args}  ",
        f"{step.args} (0x{random.randrange(2**32):x})",
    )
    return msgspec.structs.replace(step, args=random.choice(forms))


# Drift


def _same_result(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    [step] = _some(known, random, 1)
    return [_reworded(step, random) for _ in range(settings.same_result + EXTRA)]


def _same_failure(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    [step] = _some(known, random, 1)
    failing = msgspec.structs.replace(step, error=True, result="TypeError: unexpected argument 'x'")
    return [_reworded(failing, random) for _ in range(settings.same_failure + EXTRA)]


def _same_message(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    said = TraceStep(action="respond", actor="agent", args="I will now look into the problem.")
    return [_reworded(said, random) for _ in range(settings.same_message + EXTRA)]


def _alternation(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    pair = _some(known, random, 2)
    rounds = (settings.alternation + 1) // 2 + EXTRA
    return [_reworded(step, random) for _ in range(rounds) for step in pair]


def _periodic(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    loop = _some(known, random, random.randint(3, 8))
    rounds = settings.period_repeats + EXTRA
    return [_reworded(step, random) for _ in range(rounds) for step in loop]


def _stall(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    """Return steps that were all done before, in an order that never comes again."""
    old = _some(known, random, random.randint(3, 6))
    fill = [random.choice(old) for _ in range(settings.stall_cycles + EXTRA)]
    return [*old, *fill]


DRIFT: dict[str, Maker] = {
    "same_result": _same_result,
    "same_failure": _same_failure,
    "same_message": _same_message,
    "alternation": _alternation,
    "periodic": _periodic,
    "stall": _stall,
}

# Decoys

DECOY_LENGTH = 40


def _polling(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    job = random.randrange(10**4)
    ask = TraceStep(action="job_status", actor="agent", args=f'{{"job":{job}}}')
    form = random.choice(("running, {} %", '{{"state":"running","done":{}}}', "{} of 40 files"))
    return [
        msgspec.structs.replace(ask, result=form.format(n), error=False)
        for n in range(DECOY_LENGTH)
    ]


def _polling_by_clock(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    """Return a job whose output differs by the time alone, with a pause in between."""
    wait = TraceStep(action="sleep", actor="agent", args='{"seconds":60}')
    made: Steps = []
    for n in range(DECOY_LENGTH // 2):
        result = f"12:{n:02}:07 still building"
        made += [wait, TraceStep("tail_log", actor="agent", args='{"lines":1}', result=result)]
    return made


def _retries(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    made: Steps = []
    for n in range(DECOY_LENGTH // 3):
        ask = TraceStep("fetch", actor="agent", args=f'{{"url":"https://example.org/{n}"}}')
        refused = msgspec.structs.replace(ask, error=True, result="Error: 503 try again")
        made += [refused] * random.randint(0, settings.same_failure - 1)
        made.append(msgspec.structs.replace(ask, result=f"page {n}"))
    return made


def _batch_edits(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    return [
        TraceStep(
            "edit_file",
            actor="agent",
            args=f'{{"path":"src/module_{n}.py","old":"foo(","new":"bar("}}',
            result="ok",
        )
        for n in range(DECOY_LENGTH)
    ]


def _edits_and_tests(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    test = TraceStep("run_tests", actor="agent", args='{"path":"tests"}', result="12 passed")
    edits = _batch_edits(known, random, settings)[: DECOY_LENGTH // 2]
    return [step for edit in edits for step in (edit, test)]


def _reading(known: Sequence[TraceStep], random: Random, settings: DriftSettings) -> Steps:
    """Return pages of one document, whose beginnings are equal."""
    return [
        TraceStep(
            "read_page", actor="agent", args=f'{{"page":{n}}}', result=f"Address: a; page {n}"
        )
        for n in range(DECOY_LENGTH)
    ]


DECOYS: dict[str, Maker] = {
    "polling": _polling,
    "polling_by_clock": _polling_by_clock,
    "retries": _retries,
    "batch_edits": _batch_edits,
    "edits_and_tests": _edits_and_tests,
    "reading": _reading,
}
