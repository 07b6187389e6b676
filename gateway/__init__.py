"""Moves messages; knows no platform and no model."""

import sys
from types import ModuleType

# structlog imports rich and pygments for tracebacks in colour, of which our logs have none (gateway/logs.py), and
# colorama, which brings ctypes, for Windows: 90 modules and 3 MB of every gateway. While it is imported, they seem not
# to be installed.
_COLOURS = {"rich", "colorama"}
if not {"structlog", *_COLOURS} & sys.modules.keys():
    sys.modules.update(dict.fromkeys(_COLOURS))  # type: ignore[arg-type]
    import structlog  # noqa: F401

    for _name in _COLOURS:
        del sys.modules[_name]

# httpx, which the Telegram library imports, brings the same modules for its command line, unless that seems missing.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


class _UvicornWithoutCommands(ModuleType):
    """Stands for uvicorn's command line, which the package imports: click, multiprocessing and 1.5 MB."""

    def __getattr__(self, name: str) -> object:
        """Return the class that the package takes from there; for its functions it returns None."""
        if name == "Server":
            from uvicorn.server import Server

            return Server
        return None if name in {"main", "run"} else super().__getattribute__(name)


sys.modules.setdefault("uvicorn.main", _UvicornWithoutCommands("uvicorn.main"))
