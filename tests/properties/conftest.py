"""How hard properties are tried: ``MULLIGAN_TEST_EXAMPLES=1000 make test ARGS=tests/properties``.

The default keeps ``make test`` short. A failure prints the blob that replays it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "mulligan",
    max_examples=int(os.environ.get("MULLIGAN_TEST_EXAMPLES", "60")),
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("mulligan")
