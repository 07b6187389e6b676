"""Show, explain and undo changes of the memory; find the data derived from a deleted message."""
