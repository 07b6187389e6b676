"""German: the area `people`; English says what each sentence is for."""

SENTENCES = {
    "owner_now": (
        "Dieser Bot gehört jetzt dir: Nur du entscheidest, wer ihm schreiben darf. `/allow` lässt jemanden zu, "
        "`/block` sperrt jemanden aus, und /help zeigt das Übrige."
    ),
    "owner_here": (
        "Wer mir hier schreibt, dem gehöre ich schon. Schick mir diesen Code auf der Plattform, von der aus ich dir"
        " gehören soll, in einer Direktnachricht."
    ),
    "owner_code_seen": (
        "Diesen Code haben hier alle gelesen, darum gilt er nicht mehr. `parlour owner claim` auf meinem Rechner gibt"
        " einen neuen aus; schick ihn mir in einer Direktnachricht."
    ),
    "allow_whom": (
        "Sag, wen: `/allow 12345`, `/allow here` für diesen ganzen Chat, oder antworte auf eine Nachricht der Person"
        " mit `/allow`."
    ),
    "block_whom": (
        "Sag, wen: `/block 12345`, `/block here` für diesen Chat, oder antworte auf eine Nachricht der Person mit "
        "`/block`."
    ),
    "allowed": "`{whom}` darf mir ab jetzt schreiben.",
    "allowed_already": "`{whom}` darf mir schon schreiben.",
    "blocked": "`{whom}` wird nicht mehr gehört. `/allow {whom}` nimmt das zurück.",
    "blocked_already": "`{whom}` ist schon gesperrt.",
    "blocked_as": "Das ist dieselbe Person wie `{other}`, und die hast du gesperrt. `/allow {other}` nimmt das zurück.",
    "owner_set": (
        "`{whom}` steht in den Einstellungen als Eigentümer (PARLOUR_OWNERS), und nur dort lässt sich das ändern."
    ),
    "owner_claimed": "`{whom}` ist Eigentümer. Erst kommt `parlour owner remove {whom}` auf meinem Rechner.",
    "nobody": (
        "Das ist niemandes Id; Namen unterscheiden Menschen nicht. Antworte mit dem Befehl auf eine Nachricht der"
        " Person, oder schreib ihre Id, wie die Plattform sie hat."
    ),
    "only_let_in": (
        "Ich kann Personen, Chats und Server aussperren; eine Rolle oder ein Workspace wird gehört, solange ein"
        " Eintrag sie zulässt."
    ),
    "elsewhere": "Ich kenne keinen Kanal dieses Namens; es gibt: {other}.",
    "none": "Noch ist niemand zugelassen, außer wer meine Seite auf meinem eigenen Rechner öffnet.",
    "title": "Wer mir schreiben darf und wer nicht:",
    "more": "Und {count:eine weitere Person|# weitere}; `parlour people list` auf meinem Rechner zeigt alle.",
    "owner_by_setting": "Eigentümer, durch die Einstellungen",
    "owner_by_code": "Eigentümer, durch einen Code",
    "allowed_by_setting": "darf schreiben, durch die Einstellungen",
    "allowed_by": "darf schreiben, zugelassen von `{by}`",
    "paired_by": "darf schreiben, hat darum gebeten und bekam ein Ja von `{by}`",
    "blocked_by": "gesperrt von `{by}`",
}
