"""Chat models behind one small port, and the client that retries and falls back."""
