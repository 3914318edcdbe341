"""Resource usage of a process: processor time and memory, as the system counts them."""

from __future__ import annotations

import os
from typing import Any

from mulligan import procfs


def usage(pid: int) -> dict[str, Any] | None:
    """Return the usage of a process and the children it has waited for; None if unknown.

    The fields are the same as those recorded when it ends.
    """
    stat, status = procfs.stat(pid), procfs.status(pid)
    if stat is None or status is None or "VmHWM" not in status:
        return None  # gone, or a zombie
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        "user_seconds": round((stat.user + stat.waited_user) / ticks, 3),
        "system_seconds": round((stat.system + stat.waited_system) / ticks, 3),
        "max_rss_bytes": int(status["VmHWM"].split()[0]) * 1024,
    }
