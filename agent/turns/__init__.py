"""Turns: the worker pool, the loop, prompts and replays."""
