"""What /model answers, and what is said when a chosen model is gone."""

SENTENCES = {
    "usual": "Here {model} answers, as everywhere.",
    "chosen": "Here {model} answers: it was chosen for this chat.",
    "decided": "Here {model} answers: whoever runs me decided that for this chat.",
    "offered": "You can choose:\n{models}\n\n`/model <name>` chooses one, `/model default` takes that back.",
    "none_offered": "There is no other to choose from.",
    "set": "From the next message on {model} answers here.",
    "back": "From the next message on {model} answers here again.",
    "as_before": "As before",
    "near": "I know no model called {name}. Did you mean {near}?",
    "unknown": "I know no model called {name}. You can choose: {models}.",
    "lost": "(`{lost}`, which was chosen for this chat, can no longer be chosen; {model} answers instead.)",
}
