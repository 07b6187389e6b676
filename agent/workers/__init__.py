"""The workers: a pool that claims turns, and runs those of messages, commands and reminders."""
