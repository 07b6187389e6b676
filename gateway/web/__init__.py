"""The web server: health, metrics and the channels' routes, behind one origin check."""
