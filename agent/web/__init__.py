"""The web: pages that are fetched and read, and searches."""
