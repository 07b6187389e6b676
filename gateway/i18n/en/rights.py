"""What /privacy and /export answer."""

SENTENCES = {
    "title": "**What I keep of this chat**",
    "memory": (
        "What I remember: {remembered:# line|# lines}, {summaries:# summary line|# summary lines}, {notes:# note|#"
        " notes}, and earlier versions of"
        " them. `/memory` shows it."
    ),
    "waiting": "{waiting:# thing that waits|# things that wait} for a yes, for 14 days at most: `/memory pending`.",
    "transcripts": "What was said, word for word: {conversations:# conversation|# conversations} since {since}.",
    "transcripts_none": "What was said, word for word: nothing yet.",
    "files": "Files that were sent, both ways: {files}, {size}.",
    "index": "An index that finds them again, made of the above and of nothing else.",
    "until_forgotten": "It stays until somebody here has it forgotten.",
    "for_days": "It stays for {days:# day|# days}, or until somebody here has it forgotten.",
    "beside": "**What I keep beside it, for all chats together**",
    "journal": (
        "What is on its way: texts of messages for 7 days after they are answered, their numbers for 30, what could not"
        " be delivered for 90."
    ),
    "usage": "How many tokens each answer took, for whom and at which price; no words. Kept for the bill.",
    "uploads": "Files that you add on the page, until they are sent, for two days at most.",
    "quarantine": "Events of a platform that I could not read, for 90 days at most.",
    "operator": "Backups, for as long as whoever runs this machine keeps them. My logs hold no words of yours.",
    "readers": "**Who can read it**",
    "readers_you": "You, and no other person who writes to me.",
    "readers_group": "Everybody in this chat. What I know of you from your direct chat with me is not among it.",
    "readers_operator": "Whoever runs this machine can read its files.",
    "readers_model": (
        "The provider of {models} is sent the conversation, the pictures and texts of files in it and what I remember"
        " here, with each question; how long it keeps them is its own affair."
    ),
    "readers_nobody": "No model provider: nothing of it leaves this machine.",
    "readers_listens": "The provider of {model} is sent voice messages.",
    "readers_embeds": "The provider of {model} is sent what is to be found by meaning.",
    "readers_platform": "This app keeps its own copy of what is written in it; I cannot reach that.",
    "yours": (
        "**What you can do**\n- `/memory` shows, explains and takes back what I remember\n- `/forget <words>` clears"
        " words everywhere here, with `--purge` in their earlier versions, too; `/forget everything` erases all of it"
        "\n- a message that you delete is deleted here, and you are asked about what I made of it"
        "\n- `/export`, in a direct chat, sends you all that is kept of you"
    ),
    "export_begun": "I am putting together what I keep of you. It comes here as a file, in a moment.",
    "export_under_way": "I am at it already; the file comes here.",
    "export_here_not": "I send that to a direct chat only. Write `/export` to me there.",
    "export_no_files": "Files cannot be sent in this chat. Whoever runs this machine can make you an export:"
    " `parlour people export`.",
    "export_done": (
        "This is what I keep of you, in {files:# file|# files}: memory, conversations as text and as data, files,"
        " usage. I"
        " remove my copy of it after a day."
    ),
    "export_left_out": (
        "{count:# file is too large to be sent here and is missing|# files are too large to be sent here and are"
        " missing}; README.md in it names what is missing, and whoever runs"
        " this machine can send you all: `parlour people export`."
    ),
    "readme": (
        "# What Parlour keeps of you, {day}\n\n{files:# file|# files}:\n\n- `memory/`: what is remembered, summaries,"
        " notes,"
        " what waits for a yes\n- `conversations/`: what was said, as text (.md) and as it is stored (.jsonl)\n"
        "- `files/`: what was sent, both ways\n- `usage.csv`: what the answers took\n\nNot in it: what others said"
        " before you called the bot, earlier versions of what is remembered, and these files, which are too"
        " large:\n\n{left_out}\n"
    ),
}
