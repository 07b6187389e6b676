"""German: the area `forget`; English says what each sentence is for."""

SENTENCES = {
    "done": (
        "Erledigt. Ich habe {remembered:# gemerkte Zeile|# gemerkte Zeilen}, {summaries:# Zeile|# Zeilen} aus"
        " Zusammenfassungen und {messages:# Nachricht|# Nachrichten} gelöscht. Es gilt ab deiner nächsten Nachricht."
    ),
    "nothing": "Mit diesen Worten habe ich nichts gefunden, was ich hier auf deine Bitte vergessen darf.",
    "others": "Einiges davon habe ich mir auf Bitte anderer gemerkt; ein Admin dieses Chats kann es vergessen lassen.",
    "purge_does": (
        "Frühere Fassungen von dem, was ich mir gemerkt habe, enthalten es noch; `/forget <Worte> --purge` löscht"
        " auch die."
    ),
    "remains": (
        "Wo ich nicht hinkomme: die Nachrichten in dieser App selbst, was der Anbieter des Modells behält,"
        " Sicherungen, und was in anderen Worten gesagt wurde."
    ),
    "purging": (
        "Jetzt nehme ich es aus früheren Fassungen, Archiven, Anhängen, dem Suchindex, beiseitegelegten Ereignissen"
        " und dem Journal; das geht von selbst weiter, auch über einen Neustart. Bis es fertig ist (meist nach"
        " Sekunden), werden auch Nachrichten mit diesen Worten gelöscht."
    ),
    "purging_own": (
        "Jetzt nehme ich, was du gesagt hast und was ich mir für dich merken sollte, aus früheren Fassungen,"
        " Anhängen, dem Suchindex und dem Journal; das geht von selbst weiter, auch über einen Neustart. Was andere"
        " gesagt haben, und Zusammenfassungen, kann ein Admin dieses Chats löschen."
    ),
    "remains_purged": (
        "Wo ich nicht hinkomme: die Nachrichten in dieser App selbst, was der Anbieter des Modells behält,"
        " Sicherungen von vorher, und was in anderen Worten gesagt wurde."
    ),
    "beyond_files": "Auch was in `files/` steht, ändere ich nicht: Nimm dort selbst heraus, was weg soll.",
    "beyond_downloads": (
        "Dateien, die der Chat im Terminal gespeichert hat, stehen in `downloads/`, neben dem, was ich mir gemerkt"
        " habe; die rühre ich nicht an."
    ),
    "everything_own": (
        "Das löscht alles, was ich von dir habe: was ich mir gemerkt habe, alle unsere Gespräche und ihre"
        " Zusammenfassungen, deine Dateien, deine Einstellungen, die Verknüpfung deiner Konten und deinen Namen in"
        " den Verbrauchszahlen. Das lässt sich nicht rückgängig machen. `/forget everything yes` führt es aus."
    ),
    "everything_chat": (
        "Das löscht alles, was ich von diesem Chat habe: was ich mir hier gemerkt habe, alle Gespräche mit mir und"
        " ihre Zusammenfassungen, und Dateien. Das lässt sich nicht rückgängig machen. `/forget everything yes` führt"
        " es aus."
    ),
    "erased_own": (
        "Erledigt: Ab deiner nächsten Nachricht weiß ich nichts von dir. Gespräche und Dateien werden jetzt entfernt;"
        " das geht von selbst weiter, auch über einen Neustart, und nimmt mit, was du in den nächsten Sekunden"
        " schreibst."
    ),
    "erased_chat": (
        "Erledigt: Ab der nächsten Nachricht weiß ich nichts von diesem Chat. Gespräche und Dateien werden jetzt"
        " entfernt; das geht von selbst weiter, auch über einen Neustart, und nimmt mit, was hier in den nächsten"
        " Sekunden geschrieben wird."
    ),
    "remains_own": (
        "Was bleibt, und wo: was du in Gruppen gesagt hast (dort `/forget <Worte> --purge`, oder bitte, wer mich"
        " betreibt: Von dort lässt sich alles auf einmal löschen), die Nachrichten in dieser App selbst, was der"
        " Anbieter des Modells behält, Sicherungen von vorher, und bis zu 30 Tage die Nummern von Nachrichten, damit"
        " keine zweimal beantwortet wird."
    ),
    "remains_chat": (
        "Was bleibt, und wo: die Nachrichten in dieser App selbst, was der Anbieter des Modells behält, Sicherungen"
        " von vorher, wer wie viel verbraucht hat, und bis zu 30 Tage die Nummern von Nachrichten, damit keine"
        " zweimal beantwortet wird."
    ),
    "typed": "/forget … --purge",
}
