"""German: the area `asking`; English says what each sentence is for."""

SENTENCES = {
    "yes": "Ja",
    "no": "Nein",
    "several": "Bei einigem, was ich mir merken oder vergessen würde, brauche ich dein Ja oder Nein:",
    "more": "und {count} weitere: `/memory pending` zeigt sie.",
    "keep": "mir „{line}“ merken",
    "forget": "„{line}“ vergessen",
    "reword": "„{old}“ in „{new}“ ändern",
    "and_more": "{first}; und {count} weitere",
    "why_untrusted": (
        "Darauf kam ich, als ich Worte von jemand anderem vor mir hatte, deshalb frage ich erst. Soll ich {what}?"
    ),
    "why_many": "Das ist mehr, als ich von mir aus ändere, deshalb frage ich erst. Soll ich {what}?",
    "why_deleted": "Die Nachricht, aus der das kam, wurde gelöscht. Soll ich {what}?",
    "why_other": "Bevor ich das tue, frage ich. Soll ich {what}?",
    "deleted": (
        "Hier wurde eine Nachricht gelöscht, und ich weiß noch etwas, das aus ihr kam. Soll ich das auch vergessen?"
    ),
    "settled": "Das ist schon entschieden, oder es ist nach 14 Tagen verfallen. Ich habe nichts geändert.",
    "approved_before": "Dazu hast du schon Ja gesagt, und es ist erledigt.",
}
