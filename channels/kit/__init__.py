"""Mechanisms that every chat platform needs; a channel adds only what is its platform's own.

`lookups` expiring look-ups, `reactions` acknowledging reactions with a durable record, `followed_threads` threads that
need no mention, `pending_responses` presses and commands, `slots` limits for each person or chat, `background` tasks,
typing indicators and token buckets, `parts` files and receipts, `settings` validators, `webhook` request bodies.
"""
