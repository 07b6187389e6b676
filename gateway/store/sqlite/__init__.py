"""The store's engine on one SQLite file."""
