"""What caps count: turns that began, tokens reserved, who was told."""

from __future__ import annotations

TABLES = ""
