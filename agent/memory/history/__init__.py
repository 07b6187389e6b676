"""What happened, entry by entry: history.jsonl, the record; HISTORY.md, the same for people."""
