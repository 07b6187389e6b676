"""Spanish: the area `telegram`; English says what each sentence is for."""

SENTENCES = {
    "write_first": (
        "La respuesta a eso es solo para ti, y Telegram no me deja escribirte hasta que me hayas escrito: abre un"
        " chat privado conmigo, pulsa Iniciar y pregunta allí otra vez."
    ),
    "privacy": (
        "Aquí solo veo lo que me menciona, me responde o empieza por una barra: es el modo de privacidad de Telegram."
        " Para dejarme leer, abre @BotFather, elige /mybots, a mí, Bot Settings, Group Privacy, Turn off; después"
        " quítame de este grupo y añádeme otra vez."
    ),
}
