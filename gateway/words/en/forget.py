"""What /forget answers."""

SENTENCES = {
    "done": (
        "Done. I cleared {remembered} remembered line(s), {summaries} summary line(s) and {messages} message(s)."
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
        " before, files of your own in `files/`, and what was said in other words."
    ),
    "typed": "/forget … --purge",
}
