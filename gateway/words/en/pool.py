"""What a person reads when messages wait, are refused or expire."""

SENTENCES = {
    "full": "Too many messages are waiting for me (at most {limit} in one chat), so I did not take this one. "
    "Please send it again a little later.",
    "expired": "I was away for more than a day, so I left what you wrote meanwhile unanswered. Please ask again.",
}
