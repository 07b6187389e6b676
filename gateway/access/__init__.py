"""Who may speak, beyond what the settings say: what is decided while the gateway runs, and what explains silence."""
