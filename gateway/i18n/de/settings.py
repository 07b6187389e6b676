"""German: the area `settings`; English says what each sentence is for."""

SENTENCES = {
    "title": "In diesem Chat gilt:",
    "everywhere": "wie überall",
    "block": "wie in allen Chats dieser Plattform",
    "chosen": "hier gewählt",
    "place": "für `{place}` entschieden",
    "more": "`/model`, `/language` und `/timezone` ändern ihre; über die anderen entscheidet, wer mich betreibt.",
}
