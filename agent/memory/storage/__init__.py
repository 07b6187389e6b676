"""What stands in files: transcripts, documents, and the bytes under both."""
