"""What /settings answers."""

SENTENCES = {
    "title": "In force in this chat:",
    "everywhere": "as everywhere",
    "block": "as in all chats of this platform",
    "chosen": "chosen here",
    "place": "decided for `{place}`",
    "more": "`/model`, `/language` and `/timezone` change theirs; the others are decided by whoever runs me.",
}
