"""The common part of page and terminal: their frames, and a channel that serves windows of a chat."""
