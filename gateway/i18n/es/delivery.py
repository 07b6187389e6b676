"""Spanish: the area `delivery`; English says what each sentence is for."""

SENTENCES = {
    "may_repeat": "(Puede que ya hayas visto esto: no sé si había llegado.)",
    "cut": "(Mi respuesta era demasiado larga y acaba aquí. Pídeme que siga, o una más corta.)",
    "stopped_here": "(Detenido aquí.)",
    "outcome_unknown": "No sé si esto llegó a hacerse: {what} (ref. {reference}).",
    "staged_dropped": "No se guardó nada de lo que iba a recordar o enviar.",
    "goes_on": "(La respuesta sigue; enseguida llega completa.)",
    "next_message": "(Mira mi siguiente mensaje.)",
    "in_the_file": "La respuesta completa está en el archivo.",
    "no_files": "(Aquí va un archivo, {name}, pero no puedo enviar archivos en este chat.)",
    "file_large": "(Aquí va un archivo, {name}, pero ocupa {size} y puedo enviar {limit} como mucho.)",
    "file_lost": "(Aquí va un archivo, {name}, pero ya no lo tengo.)",
    "file_refused": "(Aquí va un archivo, {name}, pero no lo aceptaron.)",
    "placeholder": "…",
    "working": "Sigo trabajando en ello. /stop lo detiene.",
    "doing": "{what}. /stop lo detiene.",
}
