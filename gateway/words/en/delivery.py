"""What delivery itself says in a chat."""

SENTENCES = {
    "may_repeat": "(You may have seen this already: I could not tell whether it had arrived.)",
    "cut": "(My answer was too long and ends here. Ask me to go on, or for a shorter one.)",
    "next_message": "(See my next message.)",
    "working": "I am still working on this. /stop ends it.",
    "doing": "{what}. /stop ends it.",
}
