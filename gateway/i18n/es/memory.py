"""Spanish: the area `memory`; English says what each sentence is for."""

SENTENCES = {
    "remember_what": "Dime qué debo recordar: `/remember me gusta el té`.",
    "too_long": "Un dato tiene {most} caracteres como mucho; dilo con menos palabras, o en varios datos.",
    "remembered": "Lo recordaré.",
    "forget_what": "Dime qué palabras olvidar, al menos {least} caracteres: `/forget té verde`.",
    "empty": "Aquí todavía no recuerdo nada. `/remember <dato>` empieza.",
    "title": "Esto es lo que recuerdo aquí:",
    "cut": "Ese es el principio de {length} caracteres; `/memory why <palabras>` busca una línea.",
    "usage": (
        "`/memory` muestra lo que recuerdo aquí\n`/memory shared` lo que sé en todos los chats\n"
        "`/memory why <palabras>` de dónde salió una línea\n`/memory log` qué cambió\n`/memory diff [cambio]` un"
        " cambio\n`/memory undo <cambio>` deshacer un cambio\n`/memory pending`, `approve <nombre>`, "
        "`reject <nombre>` lo que espera un sí"
    ),
    "no_changes": "Nada ha cambiado todavía lo que recuerdo aquí.",
    "no_such_change": "No conozco ningún cambio llamado {sha}. `/memory log` los nombra.",
    "why_what": "Dime algunas palabras de la línea a la que te refieres: `/memory why té`.",
    "no_such_line": "No recuerdo nada que tenga estas palabras.",
    "undo_what": "Dime qué cambio: `/memory log` los nombra.",
    "overtaken": "Hay cambios posteriores sobre ese, así que no puedo deshacerlo solo. `/memory log` los nombra.",
    "undone": "Deshecho. Cuenta a partir de tu próximo mensaje.",
    "cause_hand": "editado a mano",
    "cause_remember": "alguien me pidió recordarlo",
    "cause_undo": "se deshizo el cambio `{what}`",
    "cause_consolidation": "resumí lo que se había dicho",
    "cause_dream": "repasé lo nuevo",
    "cause_restore": "alguien volvió al estado anterior al cambio `{what}` de Dream",
    "summary": "El resumen con el que llegó: {quote}",
    "cause_approved": "alguien dijo que sí a lo que esperaba",
    "cause_forget": "alguien hizo olvidar palabras",
    "waits": (
        "Esto espera un sí. `/memory approve <nombre>` lo hace, `/memory reject <nombre>` lo descarta; a los 14 días"
        " caduca y todo queda como está."
    ),
    "nothing_waits": "Aquí nada espera un sí.",
    "no_such_waiting": "Nada espera con ese nombre. `/memory pending` muestra lo que espera.",
    "would_remove": "quitaría: {line}",
    "would_reword": "reformularía: {old} → {new}",
    "would_add": "añadiría o reformularía: {line}",
    "approve_done": "Hecho. Cuenta a partir de tu próximo mensaje; `/memory undo` lo deshace.",
    "reject_done": "Descartado. Lo que recuerdo queda como está.",
    "cause_imported": "traído de {what}",
    "cause_other": "se cambió",
    "said": "{who} escribió: {quote}",
    "somebody": "Alguien",
}
