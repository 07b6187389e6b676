"""German: the area `telegram`; English says what each sentence is for."""

SENTENCES = {
    "write_first": (
        "Die Antwort darauf ist nur für dich, und Telegram lässt mich dir erst schreiben, wenn du mir geschrieben"
        " hast: Öffne einen privaten Chat mit mir, drück Start und frag dort noch einmal."
    ),
    "privacy": (
        "Hier sehe ich nur, was mich erwähnt, mir antwortet oder mit einem Schrägstrich beginnt: Das ist Telegrams"
        " Privatsphäre-Modus. Damit ich mitlesen kann, öffne @BotFather, wähle /mybots, mich, Bot Settings, Group"
        " Privacy, Turn off; dann entferne mich aus dieser Gruppe und füg mich wieder hinzu."
    ),
}
