"""Spanish: the area `failures`; English says what each sentence is for."""

SENTENCES = {
    "busy": "El modelo está ocupado ahora mismo. Vuelve a enviar tu mensaje en un minuto, por favor, o usa /retry.",
    "unreachable": "Ahora mismo no llego al modelo. /retry vuelve a intentar tu último mensaje.",
    "timeout": "El modelo no respondió a tiempo. /retry vuelve a intentar tu último mensaje.",
    "refused": "El modelo no acepta esta petición. Quien me administra tiene que mirar la configuración.",
    "garbled": "El modelo dio una respuesta que no pude leer. /retry vuelve a intentar tu último mensaje.",
    "overflow": "Esta conversación ya no cabe en el modelo. /new empieza una nueva.",
    "empty": "El modelo no dio ninguna respuesta. /retry vuelve a intentar tu último mensaje.",
    "loop": "He estado dando vueltas a esto, así que he parado. ¿Puedes decirlo de otra manera?",
    "bug": "Algo ha fallado por mi parte. /retry vuelve a intentar tu último mensaje.",
    "poison": "Tu mensaje me hizo tropezar tres veces, así que lo he apartado. ¿Puedes decirlo de otra manera?",
    "reference": "{text} (ref. {reference})",
}
