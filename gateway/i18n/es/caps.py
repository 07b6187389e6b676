"""Spanish: the area `caps`; English says what each sentence is for."""

SENTENCES = {
    "person_turns": (
        "Van {limit:# pregunta|# preguntas} en diez minutos; no puedo responderte más. A partir de {until} vuelvo a"
        " estar para ti."
    ),
    "chat_turns": (
        "Van {limit:# pregunta|# preguntas} en diez minutos; no puedo responder más en este chat. A partir de {until}"
        " vuelvo a responder aquí."
    ),
    "own_turns": (
        "He empezado {limit:# tarea|# tareas} por mi cuenta en diez minutos; no puedo más aquí. A partir de {until}"
        " sigo."
    ),
    "person_tokens": (
        "Se ha agotado lo que puedo gastar en un día en tus preguntas. A partir de {until} vuelvo a estar para ti."
    ),
    "chat_tokens": (
        "Se ha agotado lo que puedo gastar en un día en este chat. A partir de {until} vuelvo a responder aquí."
    ),
    "own_tokens": (
        "Se ha agotado lo que puedo gastar en un día en tareas propias en este chat. A partir de {until} sigo."
    ),
    "house_tokens": (
        "Se ha agotado lo que puedo gastar en un día, para todos juntos. A partir de {until} vuelvo a responder."
    ),
}
