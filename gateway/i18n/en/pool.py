"""What a person reads when messages wait, are refused or expire."""

SENTENCES = {
    "full": "Too many messages are waiting for me (at most {limit} in one chat), so I did not take this one. "
    "Please send it again a little later.",
    "expired": "I was away for more than a day, so I left what you wrote meanwhile unanswered. Please ask again.",
    "set_aside": "I could not take in a message of yours: reading it stopped me again and again. I set it aside, and "
    "whoever runs me knows. Please put it differently.",
}
