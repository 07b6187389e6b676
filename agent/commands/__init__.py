"""Commands: one router for all channels, each command one function and one entry-point line."""
