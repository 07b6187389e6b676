"""Consolidation: summarising old messages into the history and MEMORY.md."""
