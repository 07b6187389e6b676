"""What delivery itself says in a chat."""

SENTENCES = {
    "may_repeat": "(You may have seen this already: I could not tell whether it had arrived.)",
    "cut": "(My answer was too long and ends here. Ask me to go on, or for a shorter one.)",
    "stopped_here": "(Stopped here.)",
    "outcome_unknown": "I do not know whether this happened: {what} (ref {reference}).",
    "staged_dropped": "Nothing that I was about to remember or send was kept.",
    "goes_on": "(The answer goes on; all of it follows in a moment.)",
    "next_message": "(See my next message.)",
    "in_the_file": "The whole answer is in the file.",
    "no_files": "(A file belongs here, {name}, but I cannot send files in this chat.)",
    "file_large": "(A file belongs here, {name}, but it has {size} and I can send {limit} at most.)",
    "file_lost": "(A file belongs here, {name}, but I do not have it any more.)",
    "file_refused": "(A file belongs here, {name}, but it was not taken.)",
    "placeholder": "…",
    "working": "I am still working on this. /stop ends it.",
    "doing": "{what}. /stop ends it.",
}
