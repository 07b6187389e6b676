"""What Discord alone makes necessary to say."""

SENTENCES = {
    "write_privately": "This is for you alone, and you take no direct messages from me. Write to me privately first.",
    "option": "what to do it with, where it needs something",
    "thread": "Conversation",
}
