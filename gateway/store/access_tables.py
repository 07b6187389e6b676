"""Who may speak beyond the settings, and the audit of what was decided about people."""

from __future__ import annotations

TABLES = ""
