"""German, informal (du)."""
