"""German: the area `offline`; English says what each sentence is for."""

SENTENCES = {
    "remembered": "Notiert. Ich merke mir: {fact}",
    "not_remembered": "Das konnte ich nicht notieren. Bitte versuch es noch einmal.",
    "found": (
        "Das habe ich mir dazu gemerkt:\n\n{hits}\n\nEs ist kein Sprachmodell eingerichtet, deshalb habe ich"
        " nachgesehen und kann mehr nicht sagen."
    ),
    "nothing": "Dazu habe ich mir nichts gemerkt. {setup}",
    "not_searched": "Ich kann gerade nicht in meinem Gedächtnis nachsehen. {setup}",
    "setup": (
        "Es ist kein Sprachmodell eingerichtet, deshalb kann ich kein Gespräch führen: Ich behalte, was du mir sagst"
        " („remember …“), und finde es wieder, wenn du fragst. Wer mich betreibt, kann `PARLOUR_LLM__MODEL` setzen"
        " (zum Beispiel `openai/gpt-4o-mini`, mit `PARLOUR_LLM__API_KEY`) und mich neu starten."
    ),
}
