"""Spanish: the area `strangers`; English says what each sentence is for."""

SENTENCES = {
    "code": (
        "Todavía no nos conocemos. Tu código es {code} y vale una hora: en cuanto lo apruebe quien me administra, te"
        " respondo."
    ),
    "nobody_direct": "Solo respondo a quienes tienen permiso. Quien me administra puede darte permiso.",
    "nobody_here": "Aquí solo respondo a quienes tienen permiso. Quien me administra puede darte permiso.",
    "write_to_me": (
        "Aquí solo respondo a quienes tienen permiso. Escríbeme en un mensaje directo: entonces pregunto a quien me"
        " administra."
    ),
    "place_waits": "Acabo de llegar, y espero a que quien me administra diga que puedo responder.",
    "person": "`{name}` (`{id}`)",
    "person_unnamed": "`{id}`",
    "ask_person": "{who} me escribe en {channel}, y no nos conocemos. Su código es {code}. ¿Puede escribirme?",
    "ask_guest": "Es un invitado, o alguien de otro espacio de trabajo.",
    "ask_place": "Me han añadido a {place} en {channel}. ¿Puedo responder allí a todos?",
    "ask_place_by": "{who} me ha añadido a {place} en {channel}. ¿Puedo responder allí a todos?",
    "yes": "Sí",
    "no": "No",
    "welcome": "Ya tienes permiso: escríbeme cuando quieras.",
    "decided_let_in": "{who} ya puede escribirme en {channel}.",
    "decided_kept_out": (
        "{who} se queda fuera en {channel}, y no se le ha dicho nada. Mañana puede volver a pedirlo; `/block {entry}`"
        " acaba con eso."
    ),
    "decided_place_open": "En {who}, en {channel}, ahora respondo a todos.",
    "decided_place_shut": "En {who}, en {channel}, me quedo en silencio, y no me voy por mi cuenta: eso te toca a ti.",
    "nobody_waits": "Nadie espera con ese código: ya se decidió, pasó su hora, o está mal escrito.",
    "locked": (
        "Demasiados códigos erróneos: no miro ninguno durante {minutes:# minuto|# minutos}. `/pair` sin código"
        " muestra quién espera."
    ),
    "waits_none": "Nadie espera para entrar.",
    "waits": "Esperan tu palabra:",
    "waits_person": "{n}. {who} en {channel}",
    "waits_place": "{n}. el lugar {who} en {channel}",
    "waits_more": "{count:Espera # más|Esperan # más}: `parlour people pending` los muestra.",
}
