"""German: the area `pool`; English says what each sentence is for."""

SENTENCES = {
    "full": (
        "Bei mir warten zu viele Nachrichten (höchstens {limit} in einem Chat), deshalb habe ich diese nicht"
        " angenommen. Bitte schick sie etwas später noch einmal."
    ),
    "expired": (
        "Ich war mehr als einen Tag weg und habe deshalb unbeantwortet gelassen, was du inzwischen geschrieben hast."
        " Bitte frag noch einmal."
    ),
    "set_aside": (
        "Eine Nachricht von dir konnte ich nicht annehmen: Beim Lesen bin ich mehrmals abgestürzt. Ich habe sie"
        " beiseitegelegt, und wer mich betreibt, weiß davon. Bitte formuliere sie anders."
    ),
}
