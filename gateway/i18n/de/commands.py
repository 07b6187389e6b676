"""German: the area `commands`; English says what each sentence is for."""

SENTENCES = {
    "start": (
        "Hallo, ich bin Parlour. Schreib mir wie einer Kollegin oder einem Kollegen; ich antworte hier und merke mir,"
        " was ich mir merken soll.\n\n- `/help` zeigt, was ich verstehe\n- `/new` beginnt ein neues Gespräch\n- "
        "`/stop` bricht ab, was ich gerade tue"
    ),
    "help_title": "Das verstehe ich:",
    "help_start": "Hallo sagen",
    "help_help": "die Befehle zeigen",
    "help_new": "ein neues Gespräch beginnen; das alte bleibt im Archiv",
    "help_stop": "abbrechen, was ich tue und was wartet",
    "help_status": "wie es mir geht: Modell, Auslastung, Tokens von heute",
    "help_queue": "woran ich gerade bin und was wartet",
    "help_retry": "die letzte Nachricht noch einmal beantworten",
    "help_search": "finden, was hier gesagt oder gemerkt wurde: `/search Adresse der Zahnärztin`",
    "help_model": "welches Modell hier antwortet, und ein anderes wählen",
    "help_remember": "etwas behalten, zum Beispiel `/remember Ich mag Tee`",
    "help_forget": "Worte aus dem Gemerkten und Gesagten löschen; `--purge` endgültig, `everything` alles",
    "help_memory": "was ich mir hier gemerkt habe, woher es kommt, und es zurücknehmen",
    "help_dream": "jetzt durchgehen, was neu ist, und aufräumen, was ich mir gemerkt habe",
    "help_dream-log": "was das zuletzt geändert hat, oder eine Änderung: `/dream-log <Änderung>`",
    "help_dream-restore": "die Änderungen davon, oder `/dream-restore <Änderung>`: so wie es davor war",
    "help_link": "zwei deiner Konten als eine Person; zeigt, was verknüpft ist",
    "help_unlink": "verknüpfte Konten wieder trennen",
    "help_settings": "was in diesem Chat gilt, und wer es entschieden hat",
    "help_share": "etwas in jedem Chat bekannt machen, zum Beispiel `/share Freitags ist das Büro zu`",
    "help_unshare": "Worte aus dem nehmen, was in jedem Chat bekannt ist",
    "help_pair": "wer um Zugang gebeten hat; `/pair CODE` lässt zu, wer diesen Code bekam",
    "help_privacy": "was ich von dir aufbewahre, wie lange, und wer es lesen kann",
    "help_export": "alles, was ich von dir habe, zugeschickt bekommen, im Direktchat",
    "help_allow": "jemanden mir schreiben lassen: eine Id, `here`, oder als Antwort auf eine Nachricht",
    "help_block": "jemanden aussperren, auf dieselbe Art",
    "help_people": "wer mir schreiben darf und wer nicht",
    "help_usage": "was deine Nachrichten kosten",
    "help_timezone": "die Zeitzone zeigen oder setzen, zum Beispiel `/timezone Europe/Berlin`",
    "help_language": "zeigen oder setzen, welche Sprache ich hier spreche, zum Beispiel `/language de`",
    "new": "Ein neues Gespräch hat begonnen.",
    "new_failed": (
        "Ich konnte das Gespräch nicht ins Archiv legen und habe nichts gelöscht. Bitte versuch es noch einmal."
    ),
    "retry": "Ich beantworte das noch einmal.",
    "retry_full": (
        "Bei mir warten zu viele Nachrichten, deshalb habe ich das nicht noch einmal aufgenommen. Bitte versuch es"
        " etwas später."
    ),
    "nothing_to_retry": "In diesem Gespräch gibt es nichts noch einmal zu beantworten.",
    "nothing_to_stop": "Es läuft nichts, und nichts wartet.",
    "already_answered": "Zu spät: Die Antwort ist schon unterwegs.",
    "stopped": "Abgebrochen. {queued:# wartende Nachricht wurde|# wartende Nachrichten wurden} ebenfalls verworfen.",
    "stopped_queue": "{queued:# wartende Nachricht wurde|# wartende Nachrichten wurden} verworfen; es lief nichts.",
    "queue_empty": "Es läuft nichts, und nichts wartet.",
    "queue": "Ich beantworte gerade {running:# Nachricht|# Nachrichten}, {waiting} {waiting:wartet|warten}.",
    "queue_doing": "Gerade: {tool}. `/stop` bricht ab.",
    "status": (
        "Parlour {version}, Modell {model}, läuft seit {uptime}.\n{busy} von {workers} Plätzen belegt, {queued:#"
        " Nachricht wartet|# Nachrichten warten}.\nDieser Chat heute: {tokens:# Token|# Tokens}, Kosten {cost}, "
        "{cached} % der Eingabe aus dem Zwischenspeicher des Anbieters."
    ),
    "status_delayed": ("Antworten in {chats:# Chat|# Chats} sind verzögert: Die Plattform nimmt sie noch nicht an."),
    "status_by_words": "Die Suche geht nur nach Wörtern: Das Modell, das weiß, was sie bedeuten, antwortet nicht.",
    "status_work": (
        "Arbeit im Hintergrund: {running} im Gang, {waiting} {waiting:wartet|warten}, {done} erledigt, seit ich laufe."
    ),
    "status_kind": (
        "- {kind}: {running} im Gang, {waiting} {waiting:wartet|warten} (am längsten seit {lag}), {failures}"
        " misslungen und neu versucht, zuletzt vor {last}"
    ),
    "status_budget": "Sie hat {spent} von ihren {limit} Tokens für heute verbraucht.",
    "status_budget_spent": "Sie hat ihre {limit} Tokens für heute verbraucht; was wartet, geht morgen weiter.",
    "cost_unknown": "unbekannt",
    "cost_part": "{cost}, dazu Unbekanntes von einigen Aufrufen",
    "usage_today": "Heute: {calls:# Modellaufruf|# Modellaufrufe}, {tokens:# Token|# Tokens}, Kosten {cost}.",
    "usage_month": "Letzte 30 Tage: {calls:# Modellaufruf|# Modellaufrufe}, {tokens:# Token|# Tokens}, Kosten {cost}.",
    "timezone": "Die Zeitzone hier ist {zone}. `/timezone <Stadt>` ändert sie, `/timezone default` nimmt das zurück.",
    "timezone_set": "Die Zeitzone ist ab jetzt {zone}.",
    "timezone_unknown": (
        "Ich kenne keine Zeitzone namens {zone}. Versuch es mit einer wie Europe/Berlin oder America/New_York."
    ),
    "timezone_near": "Ich kenne keine Zeitzone namens {zone}. Meinst du {near}?",
    "language": (
        "Hier spreche ich {name}. `/language <Kürzel>` ändert das: {languages}. `/language default` nimmt es zurück."
    ),
    "language_set": (
        "Ab jetzt spreche ich hier Deutsch. Meine Antworten richten sich nach der Sprache, in der du schreibst."
    ),
    "language_unknown": "{name} spreche ich nicht. Ich spreche {languages}.",
    "only_admin": "/{command} dürfen hier nur Admins dieses Chats benutzen, und wem dieser Bot gehört.",
    "only_owner": "/{command} darf nur benutzen, wem dieser Bot gehört.",
    "did_you_mean": "Ich kenne kein /{name}. Meinst du /{near}?",
    "unknown": "Ich kenne kein /{name}. /help zeigt, was ich verstehe.",
    "button_gone": "Dieser Knopf tut nichts mehr.",
    "revoked": "Du darfst mir hier nicht mehr schreiben, deshalb lasse ich das unbeantwortet.",
    "stopped_turn": "Abgebrochen.",
}
