"""What only Slack's people read."""

SENTENCES = {
    "thinking": "is thinking…",
    "no_files": "I cannot send {name}: this app may not upload files here (it lacks the scope files:write).",
    "write_privately": "This is for you alone, and I cannot show it here: write to me privately first.",
}
