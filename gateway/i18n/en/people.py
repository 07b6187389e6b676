"""What is said about who may speak and who decides."""

SENTENCES = {
    "owner_now": (
        "You are the owner of this bot now: you alone decide who may write to it. `/allow` lets somebody in, `/block`"
        " shuts somebody out, and /help lists the rest."
    ),
    "owner_here": (
        "Whoever writes to me here is the owner already. Send this code to me on the platform that you want to own me"
        " from, in a direct message."
    ),
    "owner_code_seen": (
        "Everybody here has read that code, so it is good no more. `parlour owner claim` on my machine prints another;"
        " send it to me in a direct message."
    ),
    "allow_whom": (
        "Say whom: `/allow 12345`, `/allow here` for all of this chat, or answer a message of theirs with `/allow`."
    ),
    "block_whom": (
        "Say whom: `/block 12345`, `/block here` for this chat, or answer a message of theirs with `/block`."
    ),
    "allowed": "`{whom}` may write to me from now on.",
    "allowed_already": "`{whom}` may write to me already.",
    "blocked": "`{whom}` is not heard any more. `/allow {whom}` takes that back.",
    "blocked_already": "`{whom}` is blocked already.",
    "blocked_as": "That is the same person as `{other}`, whom you blocked. `/allow {other}` takes that back.",
    "owner_set": "`{whom}` is an owner by the settings (PARLOUR_OWNERS), so only there can that be changed.",
    "owner_claimed": "`{whom}` is an owner. `parlour owner remove {whom}` on my machine comes first.",
    "nobody": (
        "That is nobody's id; names do not tell people apart. Answer a message of theirs with the command, or write"
        " their id as the platform has it."
    ),
    "only_let_in": "I can shut out people, chats and servers; a role or workspace is heard while an entry lets it in.",
    "elsewhere": "I know no channel of that name; there are: {other}.",
    "none": "Nobody is let in yet, but who opens my page on my own machine.",
    "title": "Who may write to me, and who may not:",
    "more": "And {count:one more|# more}; `parlour people list` on my machine shows all.",
    "owner_by_setting": "owner, by the settings",
    "owner_by_code": "owner, by a code",
    "allowed_by_setting": "may write, by the settings",
    "allowed_by": "may write, let in by `{by}`",
    "paired_by": "may write, asked to and was approved by `{by}`",
    "blocked_by": "blocked by `{by}`",
}
