"""What only Slack's people read."""

SENTENCES = {
    "thinking": "is thinking…",
    "write_privately": "This is for you alone, and I cannot show it here: write to me privately first.",
}
