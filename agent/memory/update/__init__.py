"""Memory updates: a model is asked about conversations, and its answers are brought into memory."""
