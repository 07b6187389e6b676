"""Spanish: the area `search`; English says what each sentence is for."""

SENTENCES = {
    "what": "Di qué debo buscar: `/search la dirección del dentista`",
    "nothing": "Nada parecido se dijo ni se recordó aquí.",
    "found": "Los mejores lugares, el mejor primero:",
    "bot": "yo",
    "by_words": "He buscado solo por palabras, así que quizá ayude probar otras palabras para lo mismo.",
    "building": "Todavía estoy repasando lo que se dijo aquí; pregunta otra vez en un minuto si quieres más.",
}
