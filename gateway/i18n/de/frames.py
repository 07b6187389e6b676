"""German: the area `frames`; English says what each sentence is for."""

SENTENCES = {
    "bad": "Was dieses Fenster geschickt hat, konnte ich nicht lesen. Meist hilft es, neu zu laden.",
    "empty": "In dieser Nachricht steht nichts.",
    "long": "Diese Nachricht ist zu lang. Die Grenze sind {limit} Zeichen.",
    "later": (
        "Ich kann gerade keine Nachrichten speichern. Deine bleibt hier und wird von selbst noch einmal geschickt."
    ),
    "full": (
        "In diesem Chat warten zu viele Nachrichten, deshalb wurde diese nicht angenommen. Bitte schick sie später"
        " noch einmal."
    ),
    "windows": "Du hast {most} Fenster offen. Bitte schließ eines und lade diese Seite neu.",
    "file_gone": "Eine Datei dieser Nachricht ist nicht mehr da. Bitte füg sie noch einmal hinzu.",
    "rejected": "Diese Nachricht wurde nicht angenommen.",
}
