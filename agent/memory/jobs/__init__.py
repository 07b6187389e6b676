"""Work beside the turns: durable jobs, who runs them, and what they may spend."""
