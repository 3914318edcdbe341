"""Benchmarks: ours and the peers', measured in the same run.

::

    harness.py     what all share: settings, targets, tables, JSON, the command line
    timing.py      seconds, medians, sizes on disk, peak memory
    messages.py    what is written: text-like and incompressible messages of 1 KB
    contenders.py  who writes it: Mulligan, the floor and the peers, behind one protocol
    race.py        how: in turns, each beside the floor of its own race
    history.py     a long past: the changes of a session of many events
    archives.py    who keeps it, and what a fresh process measures when it reopens it
    trees.py       files to capture: generated trees, and the steps of an agent in them
    keepers.py     who captures them: Mulligan, shadow git, restic, borg, and tar as the limit
    append.py      one durable act: an event, a checkpoint, a step
    steps.py       a session of 2,000 steps: does step 2,000 cost what step 2 did, and what is kept
    reopen.py      a store with 100,000 events: open it, look anywhere in it, fork it
    workspace.py   files: the first capture, steps, restores, rollbacks, size and memory
    team_agent.py  the agents of team.py
    team.py        teams of agents: killed, resumed, and what supervision costs
    daily.py       weeks of an agent's work in a project, and a clock that skips the nights
    live.py        what of a store is live
    thinning.py    who thins a history: Mulligan, restic, borg
    upkeep_child.py  the processes of upkeep.py that collect and verify
    upkeep.py      a store that runs for a year: retention, collection, verify, daily work
    startup.py     the command line as it is felt: help, looks, checkpoints

Each topic is ``python -m benchmarks.NAME [--quick] [--check] [--json FILE]``, and
``python -m benchmarks`` runs them all. The targets stand at the top of each topic.
"""
