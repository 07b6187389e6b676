"""German: the area `memory`; English says what each sentence is for."""

SENTENCES = {
    "remember_what": "Sag mir, was ich mir merken soll: `/remember Ich mag Tee`.",
    "too_long": "Ein Merksatz hat höchstens {most} Zeichen; bitte sag es kürzer, oder in mehreren Sätzen.",
    "remembered": "Das merke ich mir.",
    "forget_what": "Sag mir, welche Worte ich vergessen soll, mindestens {least} Zeichen: `/forget grüner Tee`.",
    "empty": "Ich habe mir hier noch nichts gemerkt. `/remember <Satz>` fängt an.",
    "title": "Das habe ich mir hier gemerkt:",
    "cut": "Das ist der Anfang von {length} Zeichen; `/memory why <Worte>` sucht eine Zeile.",
    "usage": (
        "`/memory` zeigt, was ich mir hier gemerkt habe\n`/memory shared` was ich in jedem Chat weiß\n"
        "`/memory why <Worte>` woher eine Zeile kommt\n`/memory log` was sich geändert hat\n`/memory diff [Änderung]`"
        " eine Änderung\n`/memory undo <Änderung>` eine Änderung zurücknehmen\n`/memory pending`, `approve <Name>`, "
        "`reject <Name>` was auf ein Ja wartet"
    ),
    "no_changes": "An dem, was ich mir hier gemerkt habe, hat sich noch nichts geändert.",
    "no_such_change": "Ich kenne keine Änderung namens {sha}. `/memory log` nennt sie.",
    "why_what": "Nenn mir ein paar Worte der Zeile, die du meinst: `/memory why Tee`.",
    "no_such_line": "Ich habe mir nichts gemerkt, das diese Worte enthält.",
    "undo_what": "Sag mir, welche Änderung: `/memory log` nennt sie.",
    "overtaken": (
        "Spätere Änderungen bauen darauf auf, deshalb kann ich sie nicht allein zurücknehmen. `/memory log` nennt sie."
    ),
    "undone": "Zurückgenommen. Es gilt ab deiner nächsten Nachricht.",
    "cause_hand": "von Hand geändert",
    "cause_remember": "jemand hat mich gebeten, es mir zu merken",
    "cause_undo": "die Änderung `{what}` wurde zurückgenommen",
    "cause_consolidation": "ich habe zusammengefasst, was vorher gesagt wurde",
    "cause_dream": "ich bin durchgegangen, was neu war",
    "cause_restore": "jemand ging hinter die Änderung `{what}` von Dream zurück",
    "summary": "Die Zusammenfassung, mit der es kam: {quote}",
    "cause_approved": "jemand hat zu dem, was wartete, Ja gesagt",
    "cause_forget": "jemand hat Worte vergessen lassen",
    "waits": (
        "Das wartet auf ein Ja. `/memory approve <Name>` nimmt es an, `/memory reject <Name>` verwirft es; nach 14"
        " Tagen verfällt es, und alles bleibt, wie es ist."
    ),
    "nothing_waits": "Hier wartet nichts auf ein Ja.",
    "no_such_waiting": "Unter diesem Namen wartet nichts. `/memory pending` zeigt, was wartet.",
    "would_remove": "würde entfernen: {line}",
    "would_reword": "würde umformulieren: {old} → {new}",
    "would_add": "würde hinzufügen oder umformulieren: {line}",
    "approve_done": "Getan. Es gilt ab deiner nächsten Nachricht; `/memory undo` nimmt es zurück.",
    "reject_done": "Fallen gelassen. Was ich mir gemerkt habe, bleibt, wie es ist.",
    "cause_imported": "mitgebracht aus {what}",
    "cause_other": "es wurde geändert",
    "said": "{who} schrieb: {quote}",
    "somebody": "Jemand",
}
