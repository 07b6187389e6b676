"""Changing documents: entries, operations, merges, staged changes."""
