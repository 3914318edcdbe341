"""Damages a real journal in hundreds of ways; nothing worse than an error may come of it.

``python -m tests.crash.damage [--seed N] [--kinds N]``: pages zeroed, from an older copy, from
another place, full of noise, cut off. Every case has to end in the right data or in an error for
damage: never in a signal, in wrong data, or in an error that is a bug.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import mulligan

PAGE = 4_096
GOOD = {"right", "refused", "incomplete"}


def build(place: Path, older: Path) -> None:
    """Make a store with some of everything, and keep a data.mdb from before its last writes."""
    with mulligan.open(place) as store:
        for name in ("run", "run-1"):
            session = store.session(name)
            for number in range(40):
                session.state.append("conversation", f"message {number} " * 40)
                session.state.set(("values", f"k{number}"), "x" * number * 300)
                if number % 6 == 0:
                    session.checkpoint(label=f"{name} {number}")
            session.restore(f"{name} 12")
            session.fork(f"{name} 18").state.set("forked", True)
            agent = store.agent("coder", session=name)
            agent.state.set("by", "coder")
            agent.close()
        older.write_bytes((place / ".mulligan/journal/data.mdb").read_bytes())
        for number in range(9):
            session.state.append("conversation", f"later {number} " * 40)
            session.checkpoint(label=f"later {number}")


def cases(data: bytes, seed: int, kinds: int) -> list[list[Any]]:
    """Return so many kinds of damage: every page zeroed, every page stale, then random ones."""
    rng = random.Random(seed)
    pages = range(len(data) // PAGE)
    every: list[list[Any]] = [["zero", page, 1] for page in pages]
    every += [["stale", page] for page in pages]
    rng.shuffle(every)
    while len(every) < kinds:
        every.append(_random_case(rng, len(data)))
    return every[:kinds]


def _random_case(rng: random.Random, size: int) -> list[Any]:
    pages = size // PAGE
    offset, count = rng.randrange(size), rng.choice([1, 8, 64, 512, PAGE])
    return rng.choice(
        [
            ["cut", offset],
            ["cut", rng.randrange(pages) * PAGE],
            ["zero", rng.randrange(pages), rng.randint(2, 8)],
            ["zero bytes", offset, count],
            ["noise", offset, count, rng.randrange(1 << 30)],
            ["noise", rng.randrange(pages) * PAGE, PAGE, rng.randrange(1 << 30)],
            ["copied", rng.randrange(pages), rng.randrange(pages)],
            ["flip", rng.randrange(pages) * PAGE + rng.randrange(40), rng.randrange(8)],
        ]
    )


def campaign(work: Path, seed: int, kinds: int) -> list[tuple[list[Any], str]]:
    """Return how each kind of damage ended."""
    place, older = work / "sound", work / "older.mdb"
    build(place, older)
    data = (place / ".mulligan/journal/data.mdb").read_bytes()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("examine.py")), place, work / "copy", older],
        input=json.dumps(cases(data, seed, kinds)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [(case, outcome) for case, outcome in map(json.loads, done.stdout.splitlines())]


def main() -> int:
    """Run the campaign and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kinds", type=int, default=400)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = campaign(Path(work), chosen.seed, chosen.kinds)
    counts = Counter(outcome for _, outcome in found)
    print(f"seed {chosen.seed}: {len(found)} kinds of damage, {dict(counts)}")
    bad = [(case, outcome) for case, outcome in found if outcome not in GOOD]
    for case, outcome in bad:
        print(f"  {outcome}: {case}")
    return 1 if bad or len(found) != chosen.kinds else 0


if __name__ == "__main__":
    sys.exit(main())
