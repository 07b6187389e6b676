"""Spanish: the area `console`; English says what each sentence is for."""

SENTENCES = {
    "hello": "Estás hablando con Parlour. /help muestra los comandos, /quit sale, Ctrl-C detiene una respuesta.",
    "prompt": "tú › ",
    "thinking": "pensando …",
    "gone": "El gateway se ha ido. Lo marcado con ✓ está guardado y tendrá respuesta.",
    "bye": "Hasta luego.",
    "file": "[archivo] {name} ({size} bytes)",
    "file_saved": "[archivo] {name} ({size} bytes): guardado como {place}",
}
