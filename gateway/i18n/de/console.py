"""German: the area `console`; English says what each sentence is for."""

SENTENCES = {
    "hello": "Du sprichst mit Parlour. /help zeigt die Befehle, /quit beendet, Strg-C bricht eine Antwort ab.",
    "prompt": "du › ",
    "thinking": "denkt nach …",
    "gone": "Das Gateway ist weg. Was mit ✓ markiert war, ist gespeichert und wird beantwortet.",
    "bye": "Bis bald.",
    "file": "[Datei] {name} ({size} Bytes)",
    "file_saved": "[Datei] {name} ({size} Bytes): gespeichert als {place}",
}
