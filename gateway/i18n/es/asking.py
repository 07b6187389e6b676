"""Spanish: the area `asking`; English says what each sentence is for."""

SENTENCES = {
    "yes": "Sí",
    "no": "No",
    "several": "Para algunas cosas que recordaría u olvidaría necesito tu sí o tu no:",
    "more": "y {count} más: `/memory pending` las muestra.",
    "keep": "recordar «{line}»",
    "forget": "olvidar «{line}»",
    "reword": "cambiar «{old}» por «{new}»",
    "and_more": "{first}; y {count} más",
    "why_untrusted": (
        "Esto surgió cuando tenía delante palabras de otra persona, así que pregunto antes. ¿Quieres que haga esto: "
        "{what}?"
    ),
    "why_many": "Es más de lo que cambio por mi cuenta, así que pregunto antes. ¿Quieres que haga esto: {what}?",
    "why_deleted": "El mensaje del que salió esto se borró. ¿Quieres que haga esto: {what}?",
    "why_other": "Pregunto antes de hacerlo. ¿Quieres que haga esto: {what}?",
    "deleted": "Aquí se borró un mensaje, y todavía recuerdo algo que salió de él. ¿Lo olvido también?",
    "settled": "Eso ya está decidido, o caducó a los 14 días. No he cambiado nada.",
    "approved_before": "A eso ya dijiste que sí, y está hecho.",
}
