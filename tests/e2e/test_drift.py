"""Real agents that loop: refreshed and finished, rolled back, isolated; and killed in between.

What is awaited are events and the ends of processes, never a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from mulligan.session.runtime.drift_watch import isolated
from tests.e2e.test_supervisor import Place, end, place, wait_for

__all__ = ["place"]

LOOPS_UNTIL_TOLD = """
    import os, time
    import mulligan

    session = mulligan.attach()
    told = os.environ.get("MULLIGAN_HANDOVER", "")
    for cycle in session.loop():
        with cycle:
            call = str(cycle.number)
            function = {"name": "search", "arguments": "{}"}
            asked = {"role": "assistant", "tool_calls": [{"id": call, "function": function}]}
            session.state.append("conversation", asked)
            result = "nothing" if "another way" not in told else f"page {call}"
            answer = {"role": "tool", "tool_call_id": call, "content": result}
            session.state.append("conversation", answer)
            time.sleep(0.01)
            if told and cycle.number % 10 == 0:
                session.tasks.complete("find")
                break
    session.agent.update(state="done")
"""

LOOPS_FOR_EVER = """
    import os, time
    import mulligan

    session = mulligan.attach()
    session.state.set("memory/plan", "worse")
    open("notes.txt", "w").write("worse")
    for cycle in session.loop():
        with cycle:
            call = f"{os.getpid()}-{cycle.number}"
            session.tools.record("search", result="nothing", id=call)
            time.sleep(0.01)
"""


def facts(place: Place, *kinds: str) -> list[dict[str, Any]]:
    return [event.payload for event in place.session.events() if event.kind in kinds]


def rungs(place: Place) -> list[str]:
    return [fact["rung"] for fact in facts(place, "drift.responded")]


def test_a_supervised_agent_that_loops_is_refreshed_and_finishes(place: Place) -> None:
    place.session.tasks.add("find it", id="find")
    place.session.state.set("context/goals", ["find the page"])
    command = place.program("agent.py", LOOPS_UNTIL_TOLD)
    code, said = end(place.up(f"[agents.a]\ncommand = {command}"))
    assert code == 0, said
    assert "a drifts (refresh): 'search' was called 4 times" in said
    assert rungs(place)[:2] == ["checkpoint", "refresh"]
    assert place.session.tasks.get("find").status == "completed"
    [refreshed, *_] = facts(place, "agent.refreshed")
    assert refreshed["rung"] == "refresh"
    told = place.session.state.get("conversation")[0]["content"]
    assert "Goals:\n- find the page" in told
    assert "Open:\n- find it" in told
    notes = [c.note or "" for c in place.session.checkpoints() if c.kind == "recovery"]
    assert any(note.startswith("a drifts, refresh: ") for note in notes)


SHELL = """
    #!/bin/sh
    # An agent that never attaches: it writes through the command line, and knows no safe points.
    test -n "$MULLIGAN_HANDOVER" && exit 0
    while true; do
        {mulligan} state append conversation '{{"role": "assistant", "content": "Once more."}}'
    done
"""


def test_an_agent_of_the_shell_is_refreshed_and_finishes(place: Place) -> None:
    mulligan = f"{sys.executable} -m mulligan"
    place.program("agent.sh", SHELL.format(mulligan=mulligan))
    (place.root / "team.toml").write_text('[agents.a]\ncommand = ["sh", "agent.sh"]\n')
    code, said = end(place.mulligan("up", "team.toml", "--no-files"))
    assert code == 0, said
    assert "a drifts (refresh): the same message came 3 times" in said
    assert [fact["rung"] for fact in facts(place, "agent.refreshed")] == ["refresh"]
    [left] = [fact["how"] for fact in facts(place, "agent.exited")][:1]
    assert left == "was ended by SIGTERM"


ALL_THE_WAY = """
    [drift.ladder]
    note = 0
    checkpoint = 0
    refresh = 0
    rollback = 1
    cooldown = "1ms"

    [agents.a]
    command = {command}
"""


def test_an_agent_that_goes_on_looping_is_rolled_back_and_isolated(place: Place) -> None:
    (place.root / "notes.txt").write_text("good")
    place.session.state.set("memory/plan", "good")
    command = place.program("agent.py", LOOPS_FOR_EVER)
    (place.root / "team.toml").write_text(
        "\n".join(line.strip() for line in ALL_THE_WAY.format(command=command).splitlines())
    )
    code, said = end(place.mulligan("up", "team.toml"))
    assert (code, rungs(place)) == (75, ["rollback", "isolate"]), said
    [rolled_back, *_] = facts(place, "agent.refreshed")
    [restored] = facts(place, "restore.applied")
    first = min(facts(place, "drift.responded")[0]["evidence"])
    assert rolled_back["rung"] == "rollback"
    assert restored["seq"] < first
    before = place.session.state.at(
        next(e.seq for e in place.session.events() if e.kind == "restore.applied")
    ).get()
    assert before["memory"]["plan"] == "good"
    assert list(isolated(place.session)) == ["a"]
    assert place.agent()["state"] == "suspended"
    assert "`mulligan drift release a`" in said

    # It stays so, whatever is resumed, until a person says otherwise.
    started = place.agent()["process_id"]
    code, said = end(place.mulligan("resume", "main"))
    assert (code, place.agent()["process_id"]) == (75, started)
    assert "a is isolated: 'search' was called 4 times" in said
    shown, _ = place.mulligan("status").communicate()
    assert "a is isolated: 'search' was called 4 times" in shown

    place.program("agent.py", "import mulligan; mulligan.attach()")
    assert end(place.mulligan("drift", "release", "a"))[0] == 0
    code, said = end(place.mulligan("resume", "main"))
    assert (code, isolated(place.session)) == (0, {}), said


ALONE = """
    import os, sys
    import mulligan

    session = mulligan.open(".").agent("a", session="main")
    for cycle in session.loop():
        with cycle:
            call = f"{os.getpid()}-{cycle.number}"
            session.tools.record("search", result="nothing", id=call)
            print("called", flush=True)
            sys.stdin.readline()
"""


@pytest.mark.parametrize("deaths", [(1,), (3,), (1, 2, 3, 5, 6)])
def test_a_killed_agent_goes_on_counting_where_it_was(
    place: Place, deaths: tuple[int, ...]
) -> None:
    """Four calls alike are an alarm, however many processes made them; none is counted twice."""
    place.program("agent.py", ALONE)
    done = 0
    for until in (*deaths, 8):
        agent = subprocess.Popen(
            [sys.executable, "agent.py"],
            cwd=place.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        place.started.append(agent)
        assert agent.stdout is not None
        assert agent.stdin is not None
        while done < until:
            done += 1
            assert agent.stdout.readline() == "called\n"
            if done < until:
                agent.stdin.write("\n")
                agent.stdin.flush()
        if until == 8:
            # The ninth cycle starts after the safe point at which the eighth was looked at.
            agent.stdin.write("\n")
            agent.stdin.flush()
            assert agent.stdout.readline() == "called\n"
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait()
    found = facts(place, "drift.noted", "drift.responded")
    assert [fact["rung"] for fact in found] == ["note", "checkpoint"]
    used = [seq for fact in found for seq in fact["evidence"]]
    assert len(used) == len(set(used)) == 8


def test_a_killed_supervisor_goes_on_where_it_was(place: Place) -> None:
    """The ladder is not climbed again from its ground by the next supervisor."""
    command = place.program("agent.py", LOOPS_FOR_EVER)
    first = place.up(f"[agents.a]\ncommand = {command}")
    wait_for(lambda: "refresh" in rungs(place), "a refresh")
    first.kill()
    first.wait()
    before = place.session.internal.control(("drift", "a"))["responses"]
    second = place.mulligan("resume", "main", "--no-files")
    wait_for(lambda: place.kinds().count("orchestrator.started") == 2, "the second supervisor")
    head = place.session.head.seq
    wait_for(
        lambda: (place.session.internal.control(("drift", "a")) or {}).get("seq", 0) > head,
        "what the agent did under it",
    )
    after = place.session.internal.control(("drift", "a"))["responses"]
    assert after[: len(before)] == before
    second.send_signal(signal.SIGTERM)
    assert end(second)[0] == 75
    shown = json.loads(place.mulligan("drift", "--json").communicate()[0])
    assert [agent["agent"] for agent in shown["agents"]] == ["a"]
