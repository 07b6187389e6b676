"""Turns: what a turn is, its prompt, its loop, and replays."""
