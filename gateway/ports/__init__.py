"""Frozen records that the three packages exchange, and Protocols where several classes implement them."""
