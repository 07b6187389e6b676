"""Spanish: the area `commands`; English says what each sentence is for."""

SENTENCES = {
    "start": (
        "Hola, soy Parlour. Escríbeme como a cualquier colega; respondo aquí y recuerdo lo que me pides recordar.\n\n"
        "- `/help` muestra lo que entiendo\n- `/new` empieza una conversación nueva\n- `/stop` detiene lo que estoy"
        " haciendo"
    ),
    "help_title": "Esto es lo que entiendo:",
    "help_start": "saludar",
    "help_help": "mostrar los comandos",
    "help_new": "empezar una conversación nueva; la anterior queda en el archivo",
    "help_stop": "detener lo que hago y lo que espera",
    "help_status": "cómo estoy: modelo, carga, tokens de hoy",
    "help_queue": "qué estoy respondiendo y qué espera",
    "help_retry": "responder otra vez al último mensaje",
    "help_search": "buscar lo que aquí se dijo o se recordó: `/search la dirección del dentista`",
    "help_model": "qué modelo responde aquí, y elegir otro",
    "help_remember": "guardar un dato, por ejemplo `/remember me gusta el té`",
    "help_forget": "borrar palabras de lo recordado y de lo dicho aquí; `--purge` para siempre, `everything` todo",
    "help_memory": "qué recuerdo aquí, de dónde salió, y retirarlo",
    "help_dream": "repasar ahora lo nuevo y ordenar lo que recuerdo",
    "help_dream-log": "qué cambió eso la última vez, o un cambio: `/dream-log <cambio>`",
    "help_dream-restore": "sus cambios, o `/dream-restore <cambio>`: como estaba antes de ese",
    "help_link": "dos cuentas tuyas como una sola persona; muestra las que están vinculadas",
    "help_unlink": "volver a separar cuentas vinculadas",
    "help_settings": "qué rige en este chat, y quién lo decidió",
    "help_share": "dar a conocer un dato en todos los chats, por ejemplo `/share los viernes cerramos`",
    "help_unshare": "retirar palabras de lo que se sabe en todos los chats",
    "help_pair": "quién pidió entrar; `/pair CODE` deja entrar a quien recibió ese código",
    "help_privacy": "qué guardo de ti, cuánto tiempo y quién puede leerlo",
    "help_export": "recibir todo lo que guardo de ti, en un chat directo",
    "help_allow": "dejar que alguien me escriba: un id, `here`, o respondiendo a un mensaje suyo",
    "help_block": "dejar fuera a alguien, de las mismas maneras",
    "help_people": "quién puede escribirme y quién no",
    "help_usage": "lo que cuestan tus mensajes",
    "help_timezone": "mostrar o fijar la zona horaria, por ejemplo `/timezone Europe/Madrid`",
    "help_language": "mostrar o fijar el idioma que hablo aquí, por ejemplo `/language es`",
    "new": "Ha empezado una conversación nueva.",
    "new_failed": "No pude archivar la conversación y no he borrado nada. Inténtalo de nuevo, por favor.",
    "retry": "Lo respondo otra vez.",
    "retry_full": "Me esperan demasiados mensajes, así que no lo he retomado. Inténtalo un poco más tarde, por favor.",
    "nothing_to_retry": "En esta conversación no hay nada que responder otra vez.",
    "nothing_to_stop": "No hay nada en marcha y nada espera.",
    "already_answered": "Demasiado tarde: la respuesta ya va de camino.",
    "stopped": "Detenido. También se {queued:descartó # mensaje que esperaba|descartaron # mensajes que esperaban}.",
    "stopped_queue": (
        "Se {queued:descartó # mensaje que esperaba|descartaron # mensajes que esperaban}; no había nada en marcha."
    ),
    "queue_empty": "No hay nada en marcha y nada espera.",
    "queue": "Respondiendo {running:# mensaje|# mensajes}; {waiting} en espera.",
    "queue_doing": "Ahora mismo: {tool}. `/stop` lo detiene.",
    "status": (
        "Parlour {version}, modelo {model}, en marcha desde hace {uptime}.\n{busy} de {workers} puestos ocupados, {"
        "queued:# mensaje|# mensajes} en espera.\nEste chat hoy: {tokens:# token|# tokens}, coste {cost}, {cached} %"
        " de la entrada desde la caché del proveedor."
    ),
    "status_delayed": ("Las respuestas a {chats:# chat|# chats} llevan retraso: la plataforma todavía no las acepta."),
    "status_by_words": "La búsqueda va solo por palabras: el modelo que sabe lo que significan no responde.",
    "status_work": (
        "Trabajo de fondo: {running} en marcha, {waiting} en espera, {done:# hecho|# hechos} desde que arranqué."
    ),
    "status_kind": (
        "- {kind}: {running} en marcha, {waiting} en espera (el más antiguo desde hace {lag}), {failures:# fallido y"
        " reintentado|# fallidos y reintentados}, el último hace {last}"
    ),
    "status_budget": "Ha gastado {spent} de sus {limit} tokens de hoy.",
    "status_budget_spent": "Ha agotado sus {limit} tokens de hoy; lo que espera sigue mañana.",
    "cost_unknown": "desconocido",
    "cost_part": "{cost}, y lo desconocido de algunas llamadas",
    "usage_today": "Hoy: {calls:# llamada al modelo|# llamadas al modelo}, {tokens:# token|# tokens}, coste {cost}.",
    "usage_month": (
        "Últimos 30 días: {calls:# llamada al modelo|# llamadas al modelo}, {tokens:# token|# tokens}, coste {cost}."
    ),
    "timezone": "La zona horaria aquí es {zone}. `/timezone <ciudad>` la cambia, `/timezone default` lo deshace.",
    "timezone_set": "La zona horaria es {zone} a partir de ahora.",
    "timezone_unknown": (
        "No conozco ninguna zona horaria llamada {zone}. Prueba una como Europe/Madrid o America/Bogota."
    ),
    "timezone_near": "No conozco ninguna zona horaria llamada {zone}. ¿Querías decir {near}?",
    "language": "Aquí hablo {name}. `/language <código>` lo cambia: {languages}. `/language default` lo deshace.",
    "language_set": "A partir de ahora aquí hablo español. Mis respuestas siguen el idioma en que escribes.",
    "language_unknown": "No hablo {name}. Hablo {languages}.",
    "only_admin": "Aquí solo un administrador de este chat, o el dueño de este bot, puede usar /{command}.",
    "only_owner": "Solo el dueño de este bot puede usar /{command}.",
    "did_you_mean": "No conozco /{name}. ¿Querías decir /{near}?",
    "unknown": "No conozco /{name}. /help muestra lo que entiendo.",
    "button_gone": "Ese botón ya no hace nada.",
    "revoked": "Ya no puedes escribirme aquí, así que dejo esto sin respuesta.",
    "stopped_turn": "Detenido.",
}
