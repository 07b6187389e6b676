"""German: the area `failures`; English says what each sentence is for."""

SENTENCES = {
    "busy": (
        "Das Modell hat gerade viel zu tun. Bitte schick deine Nachricht in einer Minute noch einmal, oder nimm /retry."
    ),
    "unreachable": "Ich erreiche das Modell gerade nicht. /retry versucht deine letzte Nachricht noch einmal.",
    "timeout": "Das Modell hat nicht rechtzeitig geantwortet. /retry versucht deine letzte Nachricht noch einmal.",
    "refused": "Das Modell nimmt diese Anfrage nicht an. Wer mich betreibt, muss in den Einstellungen nachsehen.",
    "garbled": "Die Antwort des Modells konnte ich nicht lesen. /retry versucht deine letzte Nachricht noch einmal.",
    "overflow": "Dieses Gespräch passt nicht mehr in das Modell. /new beginnt ein neues.",
    "empty": "Das Modell hat keine Antwort gegeben. /retry versucht deine letzte Nachricht noch einmal.",
    "loop": "Ich habe mich damit im Kreis gedreht und aufgehört. Kannst du es anders sagen?",
    "bug": "Bei mir ist etwas schiefgegangen. /retry versucht deine letzte Nachricht noch einmal.",
    "poison": (
        "Über deine Nachricht bin ich dreimal gestolpert, deshalb habe ich sie beiseitegelegt. Kannst du es anders"
        " sagen?"
    ),
    "reference": "{text} (Ref. {reference})",
}
