"""What people are told who are not let in, once a day, and what owners are asked about them."""

SENTENCES = {
    "code": (
        "We have not met. Your code is {code}, good for an hour: as soon as whoever runs me approves it, I answer you."
    ),
    "nobody_direct": "I answer only people who were let in. Whoever runs me can let you in.",
    "nobody_here": "I answer only people who were let in here. Whoever runs me can let you in.",
    "write_to_me": (
        "I answer only people who were let in here. Write to me in a direct message: then I ask whoever runs me."
    ),
    "place_waits": "I am new here, and wait until whoever runs me says that I may answer.",
    "person": "`{name}` (`{id}`)",
    "person_unnamed": "`{id}`",
    "ask_person": "{who} writes to me on {channel}, and I do not know them. I gave them the code {code}. May they?",
    "ask_guest": "They are a guest, or from another workspace.",
    "ask_place": "I was added to {place} on {channel}. May I answer everybody there?",
    "ask_place_by": "{who} added me to {place} on {channel}. May I answer everybody there?",
    "yes": "Yes",
    "no": "No",
    "welcome": "You are let in: write to me whenever you like.",
    "decided_let_in": "{who} may write to me on {channel} now.",
    "decided_kept_out": (
        "{who} stays out on {channel}, and was told nothing. They can ask again tomorrow; `/block {entry}` ends that."
    ),
    "decided_place_open": "I answer everybody in {who} on {channel} now.",
    "decided_place_shut": "I stay silent in {who} on {channel}, and do not leave by myself: that is for you to do.",
    "nobody_waits": "Nobody waits under that code: it was decided already, its hour is over, or it is misspelt.",
    "locked": (
        "Too many wrong codes: I look at none for {minutes:# minute|# minutes}. `/pair` without one shows who waits."
    ),
    "waits_none": "Nobody waits to be let in.",
    "waits": "These wait for your word:",
    "waits_person": "{n}. {who} on {channel}",
    "waits_place": "{n}. the place {who} on {channel}",
    "waits_more": "{count:# more waits|# more wait}: `parlour people pending` shows them.",
}
