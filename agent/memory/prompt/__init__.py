"""The prompt of a conversation: its window of messages, its snapshot, and the limits of both."""
