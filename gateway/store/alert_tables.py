"""What the owner was told last, by cause."""

from __future__ import annotations

TABLES = ""
