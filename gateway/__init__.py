"""Moves messages; knows no platform and no model."""
