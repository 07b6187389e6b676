"""German: the area `model`; English says what each sentence is for."""

SENTENCES = {
    "usual": "Hier antwortet {model}, wie überall.",
    "chosen": "Hier antwortet {model}: Es wurde für diesen Chat gewählt.",
    "decided": "Hier antwortet {model}: Das hat, wer mich betreibt, für diesen Chat entschieden.",
    "offered": "Du kannst wählen:\n{models}\n\n`/model <Name>` wählt eins, `/model default` nimmt das zurück.",
    "none_offered": "Es gibt kein anderes zur Wahl.",
    "set": "Ab der nächsten Nachricht antwortet hier {model}.",
    "back": "Ab der nächsten Nachricht antwortet hier wieder {model}.",
    "as_before": "Wie vorher",
    "near": "Ich kenne kein Modell namens {name}. Meinst du {near}?",
    "unknown": "Ich kenne kein Modell namens {name}. Du kannst wählen: {models}.",
    "lost": "(`{lost}`, das für diesen Chat gewählt war, gibt es nicht mehr zur Wahl; stattdessen antwortet {model}.)",
}
