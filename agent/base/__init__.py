"""What every part of the agent uses: scopes, facts of files, lines of transcripts, locks, the disk and estimates."""
