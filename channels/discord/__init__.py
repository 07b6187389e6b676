"""Discord. So far its settings; the adapter comes with the channel."""
