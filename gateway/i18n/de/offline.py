"""German: the area `offline`; English says what each sentence is for."""

SENTENCES = {
    "remembered": "Notiert. Ich merke mir: {fact}",
    "not_remembered": "Das konnte ich nicht notieren. Bitte versuch es noch einmal.",
    "found": "Das habe ich mir dazu gemerkt:\n\n{hits}",
    "nothing": "Dazu habe ich mir nichts gemerkt.",
    "not_searched": "Ich kann gerade nicht in meinem Gedächtnis nachsehen.",
    "abilities": (
        "Es ist kein Sprachmodell eingerichtet, deshalb kann ich noch kein Gespräch führen. Das geht schon:\n\n- "
        "„remember …“ merkt sich etwas, und wenn du danach fragst, finde ich es wieder\n- `/search …` findet, was "
        "hier gesagt oder gemerkt wurde\n- Dateien, die du schickst, werden aufbewahrt\n- `/help` zeigt, was ich "
        "sonst noch verstehe"
    ),
    "no_model": (
        "Es ist kein Sprachmodell eingerichtet: Ich behalte, was du mir sagst, und finde es wieder; mehr kann ich nicht"
        " sagen."
    ),
    "setup": "Wer mich betreibt, kann mit `{command}` ein Sprachmodell einrichten und mich dann neu starten.",
    "hint": "„{question}“ sagt dir, was ohne Sprachmodell geht.",
    "start": (
        "Hallo, ich bin Parlour. Noch ist kein Sprachmodell eingerichtet: Ich behalte, was du mir sagst, und "
        "finde es wieder; mehr kann ich nicht sagen.\n\n- `/remember …` merkt sich etwas\n- `/search …` findet es "
        "wieder\n- `/help` zeigt, was ich verstehe"
    ),
}
