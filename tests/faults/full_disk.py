"""A `parlour` command whose disk is full from its first write on: ``python -m tests.faults.full_disk FOLDER COMMAND``.

It runs in a process of the fork server, which has loaded the shim (tests/faults/fork_server.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.main import main
from tests.faults.shim import FaultShim, ShimMode

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shim = FaultShim()
    shim.watch(folder, folder.with_suffix(".report"))
    shim.arm(ShimMode.NO_SPACE, 1)
    sys.argv = ["parlour", *sys.argv[2:]]
    main()
