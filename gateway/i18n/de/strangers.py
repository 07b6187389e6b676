"""German: the area `strangers`; English says what each sentence is for."""

SENTENCES = {
    "code": (
        "Wir kennen uns noch nicht. Dein Code ist {code}, er gilt eine Stunde: Sobald ihn bestätigt, wer mich"
        " betreibt, antworte ich dir."
    ),
    "nobody_direct": "Ich antworte nur Leuten, die zugelassen sind. Wer mich betreibt, kann dich zulassen.",
    "nobody_here": "Ich antworte hier nur Leuten, die hier zugelassen sind. Wer mich betreibt, kann dich zulassen.",
    "write_to_me": (
        "Ich antworte hier nur Leuten, die hier zugelassen sind. Schreib mir in einer Direktnachricht: Dann frage"
        " ich bei der Person nach, die mich betreibt."
    ),
    "place_waits": "Ich bin neu hier und warte, bis ich antworten darf; das entscheidet, wer mich betreibt.",
    "person": "`{name}` (`{id}`)",
    "person_unnamed": "`{id}`",
    "ask_person": (
        "{who} schreibt mir auf {channel}, und wir kennen uns nicht. Der Code dazu ist {code}. Darf die Person mir"
        " schreiben?"
    ),
    "ask_guest": "Das ist ein Gast, oder jemand aus einem anderen Workspace.",
    "ask_place": "Ich wurde auf {channel} zu {place} hinzugefügt. Darf ich dort allen antworten?",
    "ask_place_by": "{who} hat mich auf {channel} zu {place} hinzugefügt. Darf ich dort allen antworten?",
    "yes": "Ja",
    "no": "Nein",
    "welcome": "Du bist zugelassen: Schreib mir, wann immer du magst.",
    "decided_let_in": "{who} darf mir jetzt auf {channel} schreiben.",
    "decided_kept_out": (
        "{who} bleibt auf {channel} draußen und hat nichts davon erfahren. Morgen ist eine neue Bitte möglich; `"
        "/block {entry}` beendet das."
    ),
    "decided_place_open": "In {who} auf {channel} antworte ich jetzt allen.",
    "decided_place_shut": "In {who} auf {channel} schweige ich und gehe nicht von selbst: Das ist deine Sache.",
    "nobody_waits": (
        "Unter diesem Code wartet niemand: Es ist schon entschieden, seine Stunde ist um, oder er ist vertippt."
    ),
    "locked": (
        "Zu viele falsche Codes: Ich sehe mir {minutes:# Minute|# Minuten} lang keinen an. `/pair` ohne Code zeigt,"
        " wer wartet."
    ),
    "waits_none": "Niemand wartet auf Zugang.",
    "waits": "Diese warten auf dein Wort:",
    "waits_person": "{n}. {who} auf {channel}",
    "waits_place": "{n}. der Ort {who} auf {channel}",
    "waits_more": "Noch {count:# wartet|# warten}: `parlour people pending` zeigt sie.",
}
