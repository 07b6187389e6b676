"""What is noted before it is forgotten: flushes before a compaction, notes at the end of a session ([002])."""
