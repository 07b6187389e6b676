"""What waits for a yes, and asking for it where it arose."""
