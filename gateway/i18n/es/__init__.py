"""Spanish, informal (tú)."""
