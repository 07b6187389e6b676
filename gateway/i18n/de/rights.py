"""German: the area `rights`; English says what each sentence is for."""

SENTENCES = {
    "title": "**Was ich von diesem Chat aufbewahre**",
    "memory": (
        "Was ich mir gemerkt habe: {remembered:# Zeile|# Zeilen}, {summaries:# Zeile|# Zeilen} Zusammenfassung, {"
        "notes:# Notiz|# Notizen}, und frühere Fassungen davon. `/memory` zeigt es."
    ),
    "waiting": (
        "{waiting:Etwas, das auf ein Ja wartet|# Dinge, die auf ein Ja warten}, höchstens 14 Tage: `/memory pending`."
    ),
    "transcripts": "Was gesagt wurde, Wort für Wort: {conversations:# Gespräch|# Gespräche} seit {since}.",
    "transcripts_none": "Was gesagt wurde, Wort für Wort: noch nichts.",
    "files": "Dateien, die geschickt wurden, in beide Richtungen: {files}, {size}.",
    "index": "Ein Verzeichnis, das sie wiederfindet, gemacht aus dem Obigen und sonst nichts.",
    "until_forgotten": "Es bleibt, bis es jemand hier vergessen lässt.",
    "for_days": "Es bleibt {days:# Tag|# Tage}, oder bis es jemand hier vergessen lässt.",
    "beside": "**Was ich daneben aufbewahre, für alle Chats zusammen**",
    "journal": (
        "Was unterwegs ist: Texte von Nachrichten noch 7 Tage nach der Antwort, ihre Nummern 30, was sich nicht"
        " zustellen ließ, 90."
    ),
    "usage": (
        "Wie viele Tokens jede Antwort brauchte, für wen und zu welchem Preis; keine Worte. Aufbewahrt für die"
        " Abrechnung."
    ),
    "uploads": "Dateien, die du auf der Seite hinzufügst, bis sie abgeschickt sind, höchstens zwei Tage.",
    "quarantine": "Ereignisse einer Plattform, die ich nicht lesen konnte, höchstens 90 Tage.",
    "operator": "Sicherungen, solange wer diesen Rechner betreibt sie behält. In meinen Logs steht keins deiner Worte.",
    "readers": "**Wer es lesen kann**",
    "readers_you": "Du, und niemand sonst, der mir schreibt.",
    "readers_group": "Alle in diesem Chat. Was ich aus deinem Direktchat mit mir von dir weiß, ist nicht dabei.",
    "readers_operator": "Wer diesen Rechner betreibt, kann seine Dateien lesen.",
    "readers_model": (
        "Der Anbieter von {models} bekommt mit jeder Frage das Gespräch, die Bilder und Texte der Dateien darin und"
        " was ich mir hier gemerkt habe; wie lange er das behält, ist seine Sache."
    ),
    "readers_nobody": "Kein Anbieter eines Modells: Nichts davon verlässt diesen Rechner.",
    "readers_listens": "Der Anbieter von {model} bekommt Sprachnachrichten.",
    "readers_embeds": "Der Anbieter von {model} bekommt, was nach der Bedeutung gefunden werden soll.",
    "readers_platform": (
        "Diese App behält ihre eigene Kopie von dem, was in ihr geschrieben wird; da komme ich nicht hin."
    ),
    "yours": (
        "**Was du tun kannst**\n- `/memory` zeigt, erklärt und nimmt zurück, was ich mir gemerkt habe\n- "
        "`/forget <Worte>` löscht Worte überall hier, mit `--purge` auch in ihren früheren Fassungen; "
        "`/forget everything` löscht alles\n- eine Nachricht, die du löschst, wird auch hier gelöscht, und du wirst"
        " gefragt, was mit dem sein soll, was ich daraus gemacht habe\n- `/export`, im Direktchat, schickt dir alles,"
        " was von dir aufbewahrt wird"
    ),
    "export_begun": "Ich stelle zusammen, was ich von dir habe. Gleich kommt es hierher, als Datei.",
    "export_under_way": "Ich bin schon dabei; die Datei kommt hierher.",
    "export_here_not": "Das schicke ich nur in einen Direktchat. Schreib mir dort `/export`.",
    "export_no_files": (
        "In diesem Chat lassen sich keine Dateien schicken. Wer diesen Rechner betreibt, kann dir einen Export"
        " machen: `parlour people export`."
    ),
    "export_done": (
        "Das ist, was ich von dir habe, in {files:# Datei|# Dateien}: Gedächtnis, Gespräche als Text und als Daten,"
        " Dateien, Verbrauch. Meine Kopie davon entferne ich nach einem Tag."
    ),
    "export_left_out": (
        "{count:# Datei ist zu groß, um hier geschickt zu werden, und fehlt|# Dateien sind zu groß, um hier geschickt"
        " zu werden, und fehlen}; README.md darin nennt, was fehlt, und wer diesen Rechner betreibt, kann dir alles"
        " schicken: `parlour people export`."
    ),
    "readme": (
        "# Was Parlour von dir aufbewahrt, {day}\n\n{files:# Datei|# Dateien}:\n\n- `memory/`: was gemerkt ist,"
        " Zusammenfassungen, Notizen, was auf ein Ja wartet\n- `conversations/`: was gesagt wurde, als Text (.md) und"
        " wie es gespeichert ist (.jsonl)\n- `files/`: was geschickt wurde, in beide Richtungen\n- `usage.csv`: was"
        " die Antworten gebraucht haben\n\nNicht darin: was andere sagten, bevor du den Bot gerufen hast, frühere"
        " Fassungen von dem, was gemerkt ist, und diese Dateien, die zu groß sind:\n\n{left_out}\n"
    ),
}
