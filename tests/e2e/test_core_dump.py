"""A crash of the process leaves no copy of its memory on the disk (docs/attacks.md, attack 90)."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.fakes.gateway import gateway


async def test_a_crash_writes_no_core_dump(tmp_path: Path) -> None:
    """Where core dumps are on, the gateway switches them off for itself: one would hold keys and conversations."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        async with gateway(tmp_path / "home") as process:
            assert resource.prlimit(process.pid, resource.RLIMIT_CORE)[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
