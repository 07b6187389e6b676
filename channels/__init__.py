"""Speaks platforms: one folder each, found by entry point."""
