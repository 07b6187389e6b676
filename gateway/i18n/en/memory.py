"""What the memory commands answer."""

SENTENCES = {
    "remember_what": "Tell me what to remember: `/remember I like tea`.",
    "too_long": "A fact is at most {most} characters; please say it in fewer words, or in several facts.",
    "remembered": "I will remember that.",
    "forget_what": "Tell me which words to forget, at least {least} characters: `/forget green tea`.",
    "empty": "I remember nothing here yet. `/remember <fact>` begins.",
    "title": "This is what I remember here:",
    "cut": "That is the beginning of {length} characters; `/memory why <words>` looks for one line.",
    "usage": (
        "`/memory` shows what I remember here\n`/memory shared` what I know in every chat\n"
        "`/memory why <words>` where a line came from\n`/memory log` what changed"
        "\n`/memory diff [change]` one change\n`/memory undo <change>` take a change back"
        "\n`/memory pending`, `approve <name>`, `reject <name>` what waits for a yes"
    ),
    "no_changes": "Nothing has changed what I remember here yet.",
    "no_such_change": "I know no change called {sha}. `/memory log` names them.",
    "why_what": "Tell me some words of the line you mean: `/memory why tea`.",
    "no_such_line": "I remember nothing that has these words.",
    "undo_what": "Tell me which change: `/memory log` names them.",
    "overtaken": "Later changes stand on that one, so I cannot take it back alone. `/memory log` names them.",
    "undone": "Taken back. It counts from your next message on.",
    "cause_hand": "edited by hand",
    "cause_remember": "somebody asked me to remember it",
    "cause_undo": "the change `{what}` was taken back",
    "cause_consolidation": "I summarised what was said before",
    "cause_dream": "I went through what was new",
    "cause_restore": "somebody went back behind Dream's change `{what}`",
    "summary": "The summary it came with: {quote}",
    "cause_approved": "somebody said yes to what was waiting",
    "cause_forget": "somebody had words forgotten",
    "waits": (
        "This waits for a yes. `/memory approve <name>` does it, `/memory reject <name>` drops it; after 14 days it"
        " lapses, and everything stays as it is."
    ),
    "nothing_waits": "Nothing waits for a yes here.",
    "no_such_waiting": "Nothing waits under that name. `/memory pending` shows what does.",
    "would_remove": "would remove: {line}",
    "would_reword": "would reword: {old} → {new}",
    "would_add": "would add or reword: {line}",
    "approve_done": "Done. It counts from your next message on; `/memory undo` takes it back.",
    "reject_done": "Dropped. What I remember stays as it is.",
    "cause_imported": "brought along from {what}",
    "cause_other": "it was changed",
    "said": "{who} wrote: {quote}",
    "somebody": "Somebody",
}
