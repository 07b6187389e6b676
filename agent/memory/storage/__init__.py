"""Transcript files, attachments, and the file operations that the memory uses."""
