"""The campaign of effects: a program that acts outside is killed; nothing happens twice or is lost.

``python -m mulligan.testing.effects_chaos --steps 3000 --effects 300 --kills 12`` is part of ``make
crash``; ``--seed N`` draws the same kills. A child process runs steps, some of which are requests
to a local HTTP server. It is killed with SIGKILL at random places and at every failpoint of steps,
effects and transactions; in between, the session is restored to earlier points or continued in a
fork. The server's counters are the judge: no irreversible effect is performed twice, none is lost,
and after each kill, every effect that was performed is done or in doubt in the ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from mulligan.errors import EffectInDoubt
from mulligan.failpoints import Failpoint
from mulligan.session import Session
from mulligan.testing.stores import open_store

SESSION = "run"
CHECKPOINT_EVERY = 50
"""After how many steps the program takes a checkpoint."""

POINTS = tuple(
    point
    for point in Failpoint
    if point.name.startswith(("STEP_", "EFFECT_", "JOURNAL_")) and point.name != "JOURNAL_INDEXED"
)
"""Where the program is killed; a transaction with new objects is rare here."""

FULL_STEPS = 1000
"""From this many steps on, every kill has to happen; a shorter program may end before."""

LAST_KILL = 0.8
"""The part of the steps after which no kill begins: what is left still reaches every point."""

WAYS = 6
"""How many kinds of effects the program has: every effect belongs to one of them in turn."""

IDEMPOTENT = 4
ASKED = 5

TIMEOUT_SECONDS = 300.0
"""How long a child may take before the campaign fails."""


class World:
    """A server that counts what is done to it.

    It serves one request after the other: a question that comes after an act is answered after it,
    also when the process that acted was killed in between.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        counts = self.counts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                counts[self.path] += 1
                self._reply({"id": counts[self.path]})

            def do_GET(self) -> None:
                self._reply({"count": counts[self.path]})

            def _reply(self, value: Any) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def handle(self) -> None:
                with suppress(OSError):  # the process at the other end was killed
                    super().handle()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Program:
    """The program that is killed: each time it starts, it makes the same calls in order."""

    def __init__(self, session: Session, url: str, steps: int, effects: int) -> None:
        self._session = session
        self._url = url
        self._steps = steps
        self._every = max(1, steps // effects)
        self.at = 0
        session.effects.rule("asked.*", approval="ask")
        session.approvals.answer_with(lambda effect: True)

    def run(self) -> None:
        """Run all steps, those that were completed before from their records."""
        for number in range(self._steps):
            self.at = number
            if number % self._every == 0:
                self._act(number // self._every)
            elif self._session.step(f"step-{number % 7}", _square, number) != number * number:
                raise AssertionError(f"step {number} has another result")
            if number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
                self._session.step("checkpoint", lambda: self._session.checkpoint("routine").id)
            tell(f"at {number}")

    def _act(self, number: int) -> None:
        while True:
            try:
                result = self._acted(number)
            except EffectInDoubt:
                self._settle(number)
            else:
                break
        if result != {"id": 1} and number % WAYS != IDEMPOTENT:
            raise AssertionError(f"effect {number} has the result {result}")

    def _acted(self, number: int) -> Any:
        path, way = f"/{number}", number % WAYS
        intent = {"path": path, "text": f"said {random.random()}"}  # another wording each time
        if way == 0:
            plain = {"path": path}
            return self._in_block("plain", intent=plain)
        if way == 1:
            step = self._session.durable(
                name=f"effect-{number}", effect="step", key=path, intent=intent
            )
            return step(lambda: self._post(path))()
        if way == 2:
            return self._in_block("checked", intent=intent, key=path, check=self._check)
        if way == IDEMPOTENT:
            return self._in_block("again", intent=intent, key=path, kind="idempotent")
        return self._in_block("asked.x" if way == ASKED else "keyed", intent=intent, key=path)

    def _in_block(self, name: str, **options: Any) -> Any:
        with self._session.effect(name, **options) as effect:
            if not effect.settled:
                effect.result = self._post(effect.intent["path"])
        return effect.result

    def _settle(self, number: int) -> None:
        """Do as a person does: look outside, then say what happened."""
        [doubt] = [
            effect
            for effect in self._session.effects.list(in_doubt=True)
            if effect.intent["path"] == f"/{number}"
        ]
        tell(f"doubt {number}")
        found = self._check(doubt.intent)
        if found is False:
            self._session.effects.settle(doubt.id, "failed")
        else:
            self._session.effects.settle(doubt.id, "done", result=found)

    def _check(self, intent: Any) -> Any:
        with urllib.request.urlopen(self._url + intent["path"]) as reply:  # noqa: S310 -- ours
            return {"id": 1} if json.load(reply)["count"] else False

    def _post(self, path: str) -> Any:
        request = urllib.request.Request(self._url + path, data=b"", method="POST")  # noqa: S310
        with urllib.request.urlopen(request) as reply:  # noqa: S310
            return json.load(reply)


def _square(number: int) -> int:
    return number * number


def tell(line: str) -> None:
    """Report progress; a pipe takes a short line at once, so a killed child leaves whole ones."""
    os.write(1, line.encode() + b"\n")


def child(options: argparse.Namespace) -> None:
    """Run the program, and die at a failpoint once it has come far enough."""
    point = Failpoint(options.point) if options.point else None
    program: Program | None = None

    def hook(reached: Failpoint) -> None:
        if reached is point and program is not None and program.at >= options.after:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    with open_store(options.store, failpoint=hook) as store:
        session = store.session(options.session)
        program = Program(session, options.url, options.steps, options.effects)
        program.run()
        session.close()


class Campaign:
    """Runs the program to its end, through kills, restores and forks."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        steps, effects = options.steps, options.effects
        self._directory = directory
        self._steps, self._effects = steps, effects
        self._rng = random.Random(options.seed)
        self._world = World()
        self._session = SESSION
        self._forks = 0
        self.kills: Counter[str] = Counter()
        self.doubts: set[int] = set()
        self.wrong: list[str] = []
        named = self._rng.sample(POINTS, min(options.points, len(POINTS)))
        points: list[Failpoint | None] = [*named, *[None] * options.kills]
        self._rng.shuffle(points)
        self._points = points

    def run(self) -> list[str]:
        """Return what went wrong."""
        try:
            for number, point in enumerate(self._points, 1):
                after = int(LAST_KILL * self._steps * number / len(self._points))
                if self._child(point, after) == 0 and self._steps >= FULL_STEPS:
                    self.wrong.append(f"{point or 'random kill'} was not reached after {after}")
                self._look()
                self._go_back()
            if self._child(None, None) != 0:
                self.wrong.append("the last run failed")
            self._judge()
        finally:
            self._world.close()
        return self.wrong

    def _child(self, point: Failpoint | None, after: int | None) -> int:
        """Run the program until it is killed; 0 if it came to its end."""
        command = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
        command += ["--child", "--store", str(self._directory), "--session", self._session]
        command += ["--url", self._world.url, "--steps", str(self._steps)]
        command += ["--effects", str(self._effects)]
        if point is not None:
            command += ["--point", point.value, "--after", str(after)]
        # Killed a little after a step that it reports: at whatever it does then.
        pause = self._rng.random() * 0.01
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            timer = threading.Timer(TIMEOUT_SECONDS, process.kill)
            timer.daemon = True
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                what, number = line.split()
                if what == b"doubt":
                    self.doubts.add(int(number))
                elif point is None and after is not None and int(number) >= after:
                    threading.Event().wait(pause)
                    process.kill()
            timer.cancel()
        if process.returncode not in (0, -signal.SIGKILL):
            self.wrong.append(f"the program ended with {process.returncode}")
        if process.returncode:
            self.kills["random" if point is None else point.value] += 1
        return process.returncode

    def _look(self) -> None:
        """After a kill: what happened outside must be done or in doubt in the ledger."""
        with open_store(self._directory) as store:
            known = {e.intent["path"]: e for e in store.session(self._session).effects}
            for path, count in self._world.counts.items():
                effect = known.get(path)
                status = None if effect is None else effect.status
                if count and status not in ("done", "in_doubt", "left_behind"):
                    self.wrong.append(f"{path} was performed, and the ledger says {status}")

    def _go_back(self) -> None:
        """Sometimes restore an earlier point, or continue in a fork of one."""
        what = self._rng.choice(["restore", "fork", "nothing", "nothing"])
        with open_store(self._directory) as store:
            session = store.session(self._session)
            taken = session.checkpoints()
            if what == "nothing" or not taken:
                return
            point = self._rng.choice(taken[-6:])
            if what == "restore":
                session.restore(point, accept_left_behind=True)
            else:
                self._forks += 1
                self._session = session.fork(point, f"{SESSION}-{self._forks}").name

    def _judge(self) -> None:
        """At the end: each effect happened once, or at least once where it may be repeated."""
        count = -(-self._steps // max(1, self._steps // self._effects))
        for number in range(count):
            times = self._world.counts[f"/{number}"]
            if times != 1 and not (number % WAYS == IDEMPOTENT and times > 1):
                self.wrong.append(f"effect {number} was performed {times} times")
        with open_store(self._directory) as store:
            self.wrong += [f"{p.what} {p.where}: {p.detail}" for p in store.verify().problems]
            left = [e.id for e in store.session(self._session).effects if e.status != "done"]
            self.wrong += [f"{id} is not done" for id in left]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign; exit 1 if something is wrong, and keep the store."""
    parser = argparse.ArgumentParser(prog="python -m mulligan.testing.effects_chaos")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--effects", type=int, default=300)
    parser.add_argument("--kills", type=int, default=12, help="at random places")
    parser.add_argument("--points", type=int, default=len(POINTS), help="failpoints to kill at")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    for name in ("--store", "--session", "--url", "--point"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        child(options)
        return 0
    print(f"effects: seed {options.seed}, {options.steps} steps, {options.effects} effects")
    directory = Path(tempfile.mkdtemp(prefix="mulligan-effects-"))
    campaign = Campaign(directory, options)
    wrong = campaign.run()
    print(f"effects: {campaign.kills.total()} kills, {len(campaign.doubts)} in doubt were reported")
    for line in wrong[:50]:
        print(f"WRONG: {line}")
    if wrong:
        print(f"the store is kept in {directory}; --seed {options.seed} draws the same kills")
        return 1
    shutil.rmtree(directory)
    print("effects: none performed twice, none lost, verified clean")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
