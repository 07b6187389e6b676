"""Spanish: the area `people`; English says what each sentence is for."""

SENTENCES = {
    "owner_now": (
        "Ahora este bot es tuyo: solo tú decides quién puede escribirle. `/allow` deja entrar a alguien, `/block`"
        " deja fuera a alguien, y /help muestra lo demás."
    ),
    "owner_here": (
        "Quien me escribe aquí ya es mi dueño. Envíame este código en la plataforma desde la que quieras ser mi"
        " dueño, en un mensaje directo."
    ),
    "owner_code_seen": (
        "Aquí todos han leído ese código, así que ya no vale. `parlour owner claim` en mi equipo da otro; envíamelo en"
        " un mensaje directo."
    ),
    "allow_whom": (
        "Di a quién: `/allow 12345`, `/allow here` para todo este chat, o responde a un mensaje suyo con `/allow`."
    ),
    "block_whom": (
        "Di a quién: `/block 12345`, `/block here` para este chat, o responde a un mensaje suyo con `/block`."
    ),
    "allowed": "`{whom}` puede escribirme a partir de ahora.",
    "allowed_already": "`{whom}` ya puede escribirme.",
    "blocked": "Ya no se oye a `{whom}`. `/allow {whom}` lo deshace.",
    "blocked_already": "`{whom}` ya está fuera.",
    "blocked_as": "Es la misma persona que `{other}`, a quien dejaste fuera. `/allow {other}` lo deshace.",
    "owner_set": "`{whom}` es dueño por la configuración (PARLOUR_OWNERS), así que solo se puede cambiar allí.",
    "owner_claimed": "`{whom}` es dueño. Antes hace falta `parlour owner remove {whom}` en mi máquina.",
    "nobody": (
        "Ese no es el id de nadie; los nombres no distinguen a las personas. Responde a un mensaje suyo con el"
        " comando, o escribe su id tal como lo tiene la plataforma."
    ),
    "only_let_in": (
        "Puedo dejar fuera a personas, chats y servidores; a un rol o un espacio de trabajo se le oye mientras una"
        " entrada lo deje pasar."
    ),
    "elsewhere": "No conozco ningún canal con ese nombre; hay: {other}.",
    "none": "Todavía no puede entrar nadie, salvo quien abre mi página en mi propia máquina.",
    "title": "Quién puede escribirme y quién no:",
    "more": "Y {count:una persona más|# más}; `parlour people list` en mi máquina las muestra todas.",
    "owner_by_setting": "dueño, por la configuración",
    "owner_by_code": "dueño, por un código",
    "allowed_by_setting": "puede escribir, por la configuración",
    "allowed_by": "puede escribir, con permiso de `{by}`",
    "paired_by": "puede escribir, lo pidió y lo aprobó `{by}`",
    "blocked_by": "fuera por decisión de `{by}`",
}
