"""Spanish: the area `settings`; English says what each sentence is for."""

SENTENCES = {
    "title": "En este chat rige:",
    "everywhere": "como en todas partes",
    "block": "como en todos los chats de esta plataforma",
    "chosen": "elegido aquí",
    "place": "decidido para `{place}`",
    "more": "`/model`, `/language` y `/timezone` cambian lo suyo; lo demás lo decide quien me administra.",
}
