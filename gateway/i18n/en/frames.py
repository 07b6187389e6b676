"""What the page and the terminal say about a message that was not taken."""

SENTENCES = {
    "bad": "I could not read what this window sent. Reloading usually helps.",
    "empty": "There is nothing in this message.",
    "long": "This message is too long. The limit is {limit} characters.",
    "later": "I cannot store messages right now. Yours is kept here and sent again by itself.",
    "full": "Too many messages are waiting in this chat, so this one was not taken. Please send it again later.",
    "windows": "{most} windows of yours are open. Please close one and reload this page.",
    "file_gone": "A file of this message is not kept here any more. Please add it again.",
    "rejected": "This message was not taken.",
}
