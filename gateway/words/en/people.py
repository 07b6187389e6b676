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
}
