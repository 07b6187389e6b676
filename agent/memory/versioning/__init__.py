"""Every change of what is remembered: kept, explained, taken back, and followed to the message it came from."""
