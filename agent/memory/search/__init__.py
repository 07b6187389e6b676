"""Recall inside one scope."""
