"""Forgetting on request: in what is remembered, in summaries and notes, and in what was said (docs/privacy.md)."""
