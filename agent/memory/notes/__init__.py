"""Notes: facts flushed before a compaction, and a note at the end of each session ([002])."""
