"""Spanish: the area `offline`; English says what each sentence is for."""

SENTENCES = {
    "remembered": "Anotado. Recordaré: {fact}",
    "not_remembered": "No pude anotarlo. Inténtalo de nuevo, por favor.",
    "found": "Esto es lo que recuerdo de eso:\n\n{hits}",
    "nothing": "No recuerdo nada de eso.",
    "not_searched": "Ahora mismo no puedo mirar en mi memoria.",
    "abilities": (
        "No hay ningún modelo de lenguaje configurado, así que todavía no puedo conversar. Esto ya funciona:\n\n- "
        "«remember …» guarda un dato, y al preguntar por él lo encuentro\n- `/search …` encuentra lo que se dijo "
        "o se guardó aquí\n- los archivos que envías se guardan\n- `/help` muestra qué más entiendo"
    ),
    "no_model": (
        "No hay ningún modelo de lenguaje configurado: guardo lo que me dices y lo encuentro cuando preguntas, y no"
        " puedo decir más."
    ),
    "setup": "Quien me administra puede configurar un modelo de lenguaje con `{command}` y arrancarme de nuevo.",
    "hint": "«{question}» explica qué funciona sin modelo de lenguaje.",
    "start": (
        "Hola, soy Parlour. Todavía no hay ningún modelo de lenguaje configurado: guardo lo que me dices y lo "
        "encuentro, y no puedo decir más.\n\n- `/remember …` guarda un dato\n- `/search …` lo encuentra\n- "
        "`/help` muestra qué entiendo"
    ),
}
