"""What is said once when a cap is reached; then there is silence until the time it names."""

SENTENCES = {
    "person_turns": (
        "That is {limit:# question|# questions} in ten minutes, as many as I may answer you."
        " From {until} on I am here for you again."
    ),
    "chat_turns": (
        "That is {limit:# question|# questions} in ten minutes, as many as I may answer in this chat."
        " From {until} on I answer here again."
    ),
    "own_turns": (
        "I took up {limit:# task|# tasks} by myself in ten minutes, as many as I may here. From {until} on I go on."
    ),
    "person_tokens": (
        "What I may spend on your questions in a day is used up. From {until} on I am here for you again."
    ),
    "chat_tokens": "What I may spend in this chat in a day is used up. From {until} on I answer here again.",
    "own_tokens": "What I may spend on tasks of my own in this chat in a day is used up. From {until} on I go on.",
    "house_tokens": "What I may spend in a day, for everybody together, is used up. From {until} on I answer again.",
}
