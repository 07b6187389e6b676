"""German: the area `caps`; English says what each sentence is for."""

SENTENCES = {
    "person_turns": (
        "Das sind {limit:# Frage|# Fragen} in zehn Minuten, mehr darf ich dir nicht beantworten. Ab {until} bin ich"
        " wieder für dich da."
    ),
    "chat_turns": (
        "Das sind {limit:# Frage|# Fragen} in zehn Minuten, mehr darf ich in diesem Chat nicht beantworten. Ab "
        "{until} antworte ich hier wieder."
    ),
    "own_turns": (
        "Ich habe in zehn Minuten von mir aus {limit:# Aufgabe|# Aufgaben} angefangen, mehr darf ich hier nicht. Ab "
        "{until} mache ich weiter."
    ),
    "person_tokens": (
        "Was ich an einem Tag für deine Fragen ausgeben darf, ist verbraucht. Ab {until} bin ich wieder für dich da."
    ),
    "chat_tokens": (
        "Was ich an einem Tag in diesem Chat ausgeben darf, ist verbraucht. Ab {until} antworte ich hier wieder."
    ),
    "own_tokens": (
        "Was ich an einem Tag in diesem Chat für eigene Aufgaben ausgeben darf, ist verbraucht. Ab {until} mache ich"
        " weiter."
    ),
    "house_tokens": (
        "Was ich an einem Tag für alle zusammen ausgeben darf, ist verbraucht. Ab {until} antworte ich wieder."
    ),
}
