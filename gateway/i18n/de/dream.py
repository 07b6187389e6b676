"""German: the area `dream`; English says what each sentence is for."""

SENTENCES = {
    "begins": "Ich gehe durch, was neu ist, und sage hier, was dabei herauskam.",
    "begins_later": (
        "Was ich an einem Tag für solche Arbeit ausgeben darf, ist für heute verbraucht. Ich gehe durch, was neu ist,"
        " wenn der nächste Tag beginnt, und sage hier, was dabei herauskam."
    ),
    "offline": "Hier gibt es kein Modell, das das könnte; wer mich betreibt, kann mir mit `parlour init` eins geben.",
    "nothing_new": "Seit dem letzten Mal gab es nichts Neues durchzugehen.",
    "done": (
        "Ich bin {entries:# neue Zusammenfassung|# neue Zusammenfassungen} durchgegangen und habe {changes:#"
        " Änderung|# Änderungen} an dem gemacht, was ich mir gemerkt habe: `{sha}`. `/dream-log {sha}` zeigt sie, `"
        "/dream-restore {sha}` nimmt sie zurück."
    ),
    "no_change": (
        "Ich bin {entries:# neue Zusammenfassung|# neue Zusammenfassungen} durchgegangen; an dem, was ich mir gemerkt"
        " habe, musste sich von selbst nichts ändern."
    ),
    "waits": "{waits:# Änderung wartet|# Änderungen warten} auf ein Ja: `/memory pending`.",
    "failed": (
        "Das ging gerade nicht: Das Modell hat nicht geantwortet, wie es soll. Verloren ist nichts; ich versuche es"
        " wieder."
    ),
    "no_changes": "Dream hat hier noch nichts geändert. `/dream` lässt es jetzt laufen.",
    "log_title": (
        "Was Dream hier geändert hat, das Neueste zuerst. `/dream-restore <Änderung>` geht auf den Stand davor zurück."
    ),
    "log_line": "`{sha}` {at}: {names}",
    "not_dreams": "Diese Änderung war nicht von Dream; `/memory diff {sha}` zeigt sie.",
    "restored": (
        "Erledigt: Was ich mir gemerkt habe, steht wie vor `{sha}`, und was andere seither geändert haben, bleibt ("
        "{kept}). Es gilt ab deiner nächsten Nachricht; `/memory undo` nimmt es zurück."
    ),
    "is_so": "Was ich mir gemerkt habe, steht schon so da.",
    "in_the_way": (
        "Hinter `{sha}` kann ich nicht zurück: `{other}` hat seither dieselben Zeilen geändert oder etwas vergessen"
        " lassen. `/memory undo {sha}` nimmt nur diese eine Änderung zurück, wo das geht."
    ),
}
