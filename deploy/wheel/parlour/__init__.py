"""The one package that the wheel puts beside other distributions, with Parlour's own three below it.

In a checkout they are top-level folders. Installed as such, `gateway`, `channels` and `agent` could overwrite somebody
else's (Django Channels owns `channels`), so the wheel keeps them in ``parlour/packages``. Importing this package puts
that folder first on the path of this process, and of no other (docs/adr/0094-names-in-the-wheel.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

PACKAGES = Path(__file__).with_name("packages")


def _use_packages() -> None:
    if not PACKAGES.is_dir():  # a checkout: they are on the path already
        return
    for name in ("gateway", "channels", "agent"):
        module = sys.modules.get(name)
        if module is not None and PACKAGES not in Path(str(module.__file__)).parents:
            raise ImportError(f"{name} of {module.__file__} is in use; Parlour needs a process of its own")
    if str(PACKAGES) not in sys.path:
        sys.path.insert(0, str(PACKAGES))


_use_packages()


def main() -> NoReturn:
    """Run the command `parlour`."""
    from gateway.main import main as run

    run()
