"""What the Telegram channel itself says."""

SENTENCES = {
    "write_first": (
        "The answer to that is for you alone, and Telegram lets me write to you only when you have written to me:"
        " open a private chat with me, press Start, and ask again there."
    ),
    "privacy": (
        "Here I only see what mentions me, answers me or begins with a slash: that is Telegram's privacy mode."
        " To let me read along, open @BotFather, choose /mybots, me, Bot Settings, Group Privacy, Turn off;"
        " then remove me from this group and add me again."
    ),
}
