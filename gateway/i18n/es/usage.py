"""Spanish: the area `usage`; English says what each sentence is for."""

SENTENCES = {
    "left_person_turns": "Te {left:queda #|quedan #} de {limit:# pregunta|# preguntas} en diez minutos.",
    "left_person_tokens": "Te quedan {left} de tus {limit:# token|# tokens} de hoy.",
    "left_chat_turns": "En este chat se pueden hacer {left} más de {limit:# pregunta|# preguntas} en diez minutos.",
    "left_chat_tokens": "A este chat le quedan {left} de sus {limit:# token|# tokens} de hoy.",
    "left_house_tokens": "Quedan {left} de los {limit:# token|# tokens} de todos para hoy.",
    "spent_person_turns": (
        "{limit:Tu pregunta|Tus # preguntas} de diez minutos {limit:está agotada|están agotadas} hasta {until}."
    ),
    "spent_person_tokens": "Has agotado tus {limit:# token|# tokens} de hoy; habrá nuevos a partir de {until}.",
    "spent_chat_turns": (
        "{limit:La pregunta|Las # preguntas} de este chat en diez minutos {limit:está agotada|están agotadas} hasta "
        "{until}."
    ),
    "spent_chat_tokens": "Este chat ha agotado sus {limit:# token|# tokens} de hoy; habrá nuevos a partir de {until}.",
    "spent_house_tokens": (
        "Se han agotado los {limit:# token|# tokens} de todos para hoy; habrá nuevos a partir de {until}."
    ),
}
