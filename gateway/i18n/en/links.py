"""What linking accounts and sharing with everybody answer."""

SENTENCES = {
    "only_direct": "Accounts are linked in a direct message with me, not here.",
    "burnt": "Others here can read that code, so I took it back. Begin again with `/link` in a direct message.",
    "needless": "There is nothing to link: everything here has one memory, whoever writes.",
    "linked": "These accounts are one person:",
    "code": (
        "To link another account of yours, write to me from there, in a direct message: `/link {code}`\n"
        "The code is good once and for ten minutes. Give it to nobody: whoever uses it and gets your yes reads what I"
        " remember of you."
    ),
    "locked": "Those were too many wrong codes. Try again in {minutes:# minute|# minutes}.",
    "wrong": "I know no such code, or it is good no more. `/link` in the other account gives a new one.",
    "own": "That is already the same person. Type the code in the other account.",
    "question": (
        "You are {mine} here. If you say yes, {other} and you are one person to me from then on: **{other} reads what I"
        " remember of you**, with everything said in this direct chat, may decide what you may, and you read theirs."
        " Say yes only if both are yours: `/link yes` or `/link no`. It needs a yes on both sides, within ten minutes."
    ),
    "yes": "Yes, both are mine",
    "no": "No",
    "waits_for_other": "Noted. Now {other} has to say yes, too.",
    "done": "Both said yes. In a moment they are one person to me; `/unlink` takes them apart again.",
    "refused": "Nothing was linked.",
    "refused_by_other": "The other account said no, so nothing was linked.",
    "nothing_asked": "Nothing waits for your yes. `/link` begins.",
    "not_linked": "No other account is linked with this one.",
    "unlink_which": "Which one shall go its own way? `/unlink <number>`",
    "unlinking": (
        "In a moment `{account}` is a person of its own again. It takes along what was said and remembered there; what"
        " is mixed stays with `{survivor}`. Both conversations begin anew, and what I answered while they were one is"
        " cleared from my records of both."
    ),
    "share_what": "Tell me what everybody may know: `/share the office is closed on Fridays`.",
    "too_long": "A fact is at most {most} characters; please say it in fewer words, or in several facts.",
    "unshare_what": "Tell me which words to take back, at least {least} characters: `/unshare closed on Fridays`.",
    "shared": "From now on I know that in every chat. `/memory shared` lists it, `/unshare <words>` takes it back.",
    "unshared": "I took back {lines:# line|# lines}; no chat is told it from its next message on.",
    "nothing_shared_so": "Nothing that is shared has these words.",
    "nothing_shared": "Nothing is shared with everybody yet.",
    "shared_title": "This is what I know in every chat; the owner decides on it:",
}
