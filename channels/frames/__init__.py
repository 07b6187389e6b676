"""What the page and the terminal share: the same frames, and a channel that serves windows of a chat."""
