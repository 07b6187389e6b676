"""Frozen records that the three packages exchange, and Protocols of stores, metrics and setup."""
