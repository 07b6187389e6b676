"""Mechanisms that every chat platform needs; a channel adds only what is its platform's own.

`lookups` expiring look-ups, `reactions` acknowledging reactions, which no kill leaves, `followed_threads` threads that
need no mention, `pending_responses` presses and commands, `background` tasks, typing indicators, token buckets and
limits for each person or chat, `bodies` request bodies, files and receipts, `settings` validators.

Token buckets are our own because aiolimiter can only wait: delivery needs the delay as a number (`RetryLater`), and
previews are dropped while few calls are left.
"""
