"""Show people what data is stored about them, and export it."""
