"""History: history.jsonl, the record of consolidations; HISTORY.md, the same as text; and files beside it."""
