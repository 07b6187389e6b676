"""What /forget answers."""

SENTENCES = {
    "done": (
        "Done. I cleared {remembered:# remembered line|# remembered lines}, {summaries:# summary line|# summary lines}"
        " and {messages:# message|# messages}."
        " It counts from your next message on."
    ),
    "nothing": "I found nothing with these words that you may have me forget here.",
    "others": "Some of it was kept by others; an admin of this chat can have that forgotten.",
    "purge_does": "Earlier versions of what I remember still hold it; `/forget <words> --purge` clears those, too.",
    "remains": (
        "What I cannot reach: the messages in this app itself, what the model's provider keeps, backups, and what was"
        " said in other words."
    ),
    "purging": (
        "Now I take it out of earlier versions, archives, attachments, the search index, events that were set aside"
        " and the journal; it goes on by itself, also over a restart. Until it is done (seconds, as a rule), messages"
        " with these words are cleared as well."
    ),
    "purging_own": (
        "Now I take what you said and had kept out of earlier versions, attachments, the search index and the journal;"
        " it goes on by itself, also over a restart. What others said, and summaries, an admin of this chat can clear."
    ),
    "remains_purged": (
        "What I cannot reach: the messages in this app itself, what the model's provider keeps, backups that were made"
        " before, and what was said in other words."
    ),
    "beyond_files": "I do not change what stands in `files/`, either: take out there what is to go.",
    "beyond_downloads": (
        "Files that the chat in the terminal saved stand in `downloads/`, beside what I remember; I do not touch those."
    ),
    "everything_own": (
        "This erases everything I keep of you: what I remember, all our conversations and their summaries, your files,"
        " your settings, the link between your accounts, and your name in the usage figures. Nothing brings it back."
        " `/forget everything yes` does it."
    ),
    "everything_chat": (
        "This erases everything I keep of this chat: what I remember here, all conversations with me and their"
        " summaries, and files. Nothing brings it back. `/forget everything yes` does it."
    ),
    "erased_own": (
        "Done: from your next message on I know nothing of you. Conversations and files are being removed now; it goes"
        " on by itself, also over a restart, and takes with it what you write in the next seconds."
    ),
    "erased_chat": (
        "Done: from the next message on I know nothing of this chat. Conversations and files are being removed now; it"
        " goes on by itself, also over a restart, and takes with it what is written here in the next seconds."
    ),
    "remains_own": (
        "What remains, and where: what you said in groups (`/forget <words> --purge` there, or ask whoever runs me:"
        " they can clear all of it at once), the messages in this app itself, what the model's provider keeps, backups"
        " that were made before, and for up to 30 days the ids of messages, so that none is answered twice."
    ),
    "remains_chat": (
        "What remains, and where: the messages in this app itself, what the model's provider keeps, backups that were"
        " made before, who used how much, and for up to 30 days the ids of messages, so that none is answered twice."
    ),
    "typed": "/forget … --purge",
}
