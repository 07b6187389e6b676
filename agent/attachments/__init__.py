"""Incoming and outgoing files: fetched, read in a limited child process, described to the model as facts."""
