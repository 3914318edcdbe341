"""What a process has used so far: processor time and memory, as the system counts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def usage(pid: int) -> dict[str, Any] | None:
    """Return what a process, with the children it has waited for, has used; None if unknown.

    The fields are those that are written down when it ends.
    """
    process = Path("/proc") / str(pid)
    try:
        times, status = (process / "stat").read_text(), (process / "status").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces; fields are counted from after it.
    user, system, waited_user, waited_system = map(int, times.rpartition(")")[2].split()[11:15])
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    if not peak:
        return None  # it has ended, and nobody has waited for it yet
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        "user_seconds": round((user + waited_user) / ticks, 3),
        "system_seconds": round((system + waited_system) / ticks, 3),
        "max_rss_bytes": int(peak[0]) * 1024,
    }
