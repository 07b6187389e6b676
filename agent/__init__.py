"""Thinks and remembers."""
