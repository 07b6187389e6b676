"""Moves messages; knows no platform and no model."""

import sys

if not {"structlog", "rich"} & sys.modules.keys():
    # structlog imports rich and pygments for tracebacks in colour, of which our logs have none (gateway/logs.py): 85
    # modules and 3 MB of every gateway. While it is imported, rich seems not to be installed.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]

# httpx, which the Telegram library imports, brings the same modules for its command line, unless that seems missing.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
