"""Whatever happens to a team, in whatever order, some things hold."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mulligan.drift import ladder
from mulligan.supervisor.machine import Machine
from mulligan.supervisor.stimuli import (
    Action,
    Answered,
    Beat,
    Begin,
    CannotStart,
    CheckpointAsked,
    Delay,
    Drifted,
    EndAsked,
    Escalate,
    Exited,
    Finish,
    Health,
    Isolate,
    Kill,
    PauseAsked,
    Prepare,
    Progressed,
    Quarantine,
    Start,
    Started,
    Stimulus,
    TakeCheckpoint,
    Tick,
)
from mulligan.supervisor.workflow import RESTARTS, AgentSpec, Backoff, Workflow

NAMES = ("a", "b", "c")

names = st.sampled_from(NAMES)
statuses = st.sampled_from([0, 0, 1, -9, -15])
states = st.sampled_from(["", "starting", "working", "suspended", "done"])


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    agents = {}
    for number, name in enumerate(NAMES[: draw(st.integers(1, 3))]):
        earlier = [n for n in NAMES[:number] if agents[n].restart != "always"]
        agents[name] = AgentSpec(
            command=("x",),
            restart=draw(st.sampled_from(RESTARTS)),
            max_restarts=draw(st.integers(0, 3)),
            within=draw(st.sampled_from([1.0, 10.0, 60.0])),
            backoff=Backoff(draw(st.sampled_from([0.1, 1.0])), 2, 5),
            heartbeat=draw(st.sampled_from([None, 3.0])),
            progress=draw(st.sampled_from([None, 5.0])),
            after=tuple(draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else ()),
        )
    return Workflow(agents=agents)


stimuli = st.one_of(
    st.just(Tick()),
    st.builds(Beat, names),
    st.builds(Progressed, names, st.sampled_from([None, 1.0, 20.0])),
    st.builds(Exited, names, statuses, states),
    st.builds(Exited, names, st.just(-9), st.just("working"), st.just("t"), st.integers(1, 4)),
    st.builds(CannotStart, names, st.just("no")),
    st.builds(Answered, names),
    st.builds(Health, names, st.booleans()),
    st.builds(CheckpointAsked, st.just("c"), st.sampled_from([1.0, 5.0])),
    st.builds(PauseAsked, st.just("p"), st.sampled_from([1.0, 5.0])),
    st.builds(Drifted, names, st.sampled_from(ladder.RUNGS), st.just("it loops")),
    st.just(EndAsked()),
)
moments = st.tuples(st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]), stimuli)


class World:
    """The processes that the machine's actions would make, and what must be true of them."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.machine = Machine(workflow)
        self.now = 0.0
        self.alive: set[str] = set()
        self.given_up: set[str] = set()
        self.prepared: set[str] = set()
        self.restarts: dict[str, list[float]] = {name: [] for name in workflow.agents}
        self.finished: list[str] = []

    def tell(self, stimulus: Stimulus) -> None:
        if isinstance(stimulus, Exited) and stimulus.agent not in self.alive:
            return  # a process ends only once
        if isinstance(stimulus, CannotStart):
            return  # it follows a start, below
        if isinstance(stimulus, Exited):
            self.alive.discard(stimulus.agent)
        for action in self.machine.handle(stimulus, self.now):
            self.do(action)

    def do(self, action: Action) -> None:
        assert not self.finished, f"{action} after the end"
        match action:
            case Start():
                self.start(action)
            case Kill():
                assert action.agent in self.alive
            case Prepare():
                assert action.agent not in self.alive
                self.prepared.add(action.agent)
            case Delay():
                self.delay(action.agent)
            case Quarantine():
                self.restarts[action.agent].clear()
            case Escalate() | Isolate():
                self.given_up.add(action.agent)
            case Finish():
                assert not self.alive
                self.finished.append(action.status)
            case TakeCheckpoint():
                assert not set(action.answered) & set(action.late)
            case _:
                pass

    def delay(self, name: str) -> None:
        """Count a restart, unless it is the response to drift, which the ladder limits."""
        if name in self.prepared:
            self.prepared.discard(name)
        else:
            self.count(name)

    def count(self, name: str) -> None:
        spec = self.workflow.agents[name]
        recent = [t for t in self.restarts[name] if self.now - t < spec.within]
        self.restarts[name] = [*recent, self.now]
        assert len(self.restarts[name]) <= spec.max_restarts, "more restarts than allowed"

    def start(self, action: Start) -> None:
        name = action.agent
        assert name not in self.alive, "two processes for one agent"
        assert name not in self.given_up
        assert not self.machine.is_stopping
        self.alive.add(name)
        for made in self.machine.handle(Started(name, 1), self.now):
            self.do(made)


@given(workflows(), st.lists(moments, max_size=60))
def test_one_process_for_an_agent_bounded_restarts_and_always_an_end(
    workflow: Workflow, script: list[tuple[float, Stimulus]]
) -> None:
    world = World(workflow)
    world.tell(Begin())
    for seconds, stimulus in script:
        world.now += seconds
        world.tell(stimulus)
    # However it stands, a pause comes to an end: whoever is told to end ends, sooner or later.
    world.tell(PauseAsked("end", 3))
    for _ in range(60):
        if world.finished:
            break
        world.now += 1
        world.tell(Tick())
        if world.now % 7 < 1:
            for name in sorted(world.alive):
                world.tell(Exited(name, -15, "working"))
    assert len(world.finished) == 1
    assert world.finished[0] in ("done", "failed", "paused")


@given(workflows(), st.lists(statuses, min_size=1, max_size=8))
def test_a_team_whose_agents_end_comes_to_an_end(workflow: Workflow, codes: list[int]) -> None:
    """Without any pause: agents that fail are restarted only so often."""
    always_ok = {n for n, spec in workflow.agents.items() if spec.restart == "always"}
    world = World(workflow)
    world.tell(Begin())
    exits: Counter[str] = Counter()
    for _ in range(3000):
        if world.finished:
            break
        world.now += 0.01
        for name in sorted(world.alive):
            exits[name] += 1
            code = codes[exits[name] % len(codes)]
            world.tell(Exited(name, code or int(name in always_ok), "starting"))
        due = world.machine.due()
        world.now = max(world.now, due or 0)
        world.tell(Tick())
    limits = {name: spec for name, spec in workflow.agents.items() if name in exits}
    if all(spec.within >= 60 for spec in limits.values()):
        assert len(world.finished) == 1
