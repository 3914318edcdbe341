"""Any history, any policy: what is kept restores byte for byte, and a second prune does nothing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import Session, Store
from mulligan.store import engine_of
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep.retention.policy import Policy, Rules
from mulligan.upkeep.retention.prune import Pruner

AGENTS = ("a-1", "a-10")
ACTIONS = ("step", "recovery", "manual", "good", "restore", "undo", "fork", "pin", "wait")

rules = st.builds(
    Rules,
    keep_last=st.integers(0, 3),
    keep_hourly=st.integers(0, 3),
    keep_within=st.sampled_from([0.0, 3600.0, 86400.0]),
)
policies = st.builds(
    Policy,
    routine=rules,
    recovery=rules,
    manual=rules,
    keep_good=st.integers(0, 2),
    undo_window=st.sampled_from([0.0, 7200.0]),
    window=st.sampled_from([60.0, 86400.0]),
)
histories = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(AGENTS)), max_size=14)


class History:
    """Plays actions, and knows what every checkpoint held."""

    def __init__(self, store: Store, clock: FakeClock, work: Path) -> None:
        self.clock = clock
        self.file = work / "file"
        self.sessions = {name: store.session("run", actor=name, workspace=work) for name in AGENTS}
        self.held: dict[str, tuple[bytes, object]] = {}
        self.steps = self.restores = 0

    def play(self, action: str, agent: str) -> None:
        session = self.sessions[agent]
        self.clock.advance(600)
        if action == "wait":
            self.clock.advance(5000)
        elif action in ("step", "recovery", "manual"):
            self._step(session, "routine" if action == "step" else action)
        elif self.held:
            getattr(self, f"_{action}")(session)

    def _step(self, session: Session, kind: str) -> None:
        self.steps += 1
        self.file.write_bytes(bytes([self.steps]) * 5000)
        session.state.set("step", self.steps)
        taken = session.checkpoint(kind)
        self.held[taken.id] = (self.file.read_bytes(), self.steps)

    def _good(self, session: Session) -> None:
        session.checkpoints.mark("@latest", "good")

    def _pin(self, session: Session) -> None:
        session.checkpoints.pin("@latest")

    def _restore(self, session: Session) -> None:
        before = (self.file.read_bytes(), session.state.get("step"))
        safety = session.restore(session.checkpoints()[0]).safety
        self.held[safety.id] = before
        self.restores += 1

    def _undo(self, session: Session) -> None:
        if self.restores:
            before = (self.file.read_bytes(), session.state.get("step"))
            self.held[session.undo().safety.id] = before
            self.restores -= 1

    def _fork(self, session: Session) -> None:
        session.fork("@latest")


@settings(max_examples=25, deadline=None)
@given(history=histories, policy=policies)
def test_what_is_kept_restores_and_the_rest_is_gone_at_once(
    history: list[tuple[str, str]], policy: Policy
) -> None:
    clock = FakeClock()
    with TemporaryDirectory() as directory, open_store(directory, clock=clock) as store:
        work = Path(directory) / "work"
        work.mkdir()
        played = History(store, clock, work)
        for action, agent in history:
            played.play(action, agent)
        plan = Pruner(engine_of(store), policy).plan()
        done = Pruner(engine_of(store), policy).run()
        assert done.removed == len(plan.plan.remove)
        assert Pruner(engine_of(store), policy).run().removed == 0
        assert store.verify(full=True).problems == ()
        session = store.session("run", workspace=work)
        left = {one.id for one in session.checkpoints()}
        assert left == {one.id for one in plan.plan.keep if one.session == "run"}
        for identity in left:
            content, step = played.held[identity]
            assert session.files.read(identity, "file") == content
            assert session.state.at(identity).get("step") == step
