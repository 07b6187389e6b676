"""Spanish: the area `offline`; English says what each sentence is for."""

SENTENCES = {
    "remembered": "Anotado. Recordaré: {fact}",
    "not_remembered": "No pude anotarlo. Inténtalo de nuevo, por favor.",
    "found": (
        "Esto es lo que recuerdo de eso:\n\n{hits}\n\nNo hay ningún modelo de lenguaje configurado, así que lo he"
        " buscado y no puedo decir más."
    ),
    "nothing": "No recuerdo nada de eso. {setup}",
    "not_searched": "Ahora mismo no puedo mirar en mi memoria. {setup}",
    "setup": (
        "No hay ningún modelo de lenguaje configurado, así que no puedo conversar: guardo lo que me dices («remember"
        " …») y lo encuentro cuando preguntas. Quien me administra puede fijar `PARLOUR_LLM__MODEL` (por ejemplo "
        "`openai/gpt-4o-mini`, con `PARLOUR_LLM__API_KEY`) y arrancarme de nuevo."
    ),
}
