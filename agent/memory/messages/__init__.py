"""Messages of a transcript: ranges, weights, names of senders, and which text is untrusted."""
