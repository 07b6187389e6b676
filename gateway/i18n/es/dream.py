"""Spanish: the area `dream`; English says what each sentence is for."""

SENTENCES = {
    "begins": "Repaso lo nuevo y diré aquí qué ha salido de ello.",
    "begins_later": (
        "Lo que puedo gastar al día en este trabajo se ha agotado por hoy. Repasaré lo nuevo cuando empiece el día"
        " siguiente, y diré aquí qué ha salido de ello."
    ),
    "offline": "Aquí no hay ningún modelo que pueda hacerlo; quien me administra puede darme uno con `parlour init`.",
    "nothing_new": "Desde la última vez no había nada nuevo que repasar.",
    "done": (
        "He repasado {entries:# resumen nuevo|# resúmenes nuevos} y he hecho {changes:# cambio|# cambios} en lo que"
        " recuerdo: `{sha}`. `/dream-log {sha}` los muestra, `/dream-restore {sha}` los deshace."
    ),
    "no_change": (
        "He repasado {entries:# resumen nuevo|# resúmenes nuevos}; nada de lo que recuerdo tenía que cambiar por sí"
        " solo."
    ),
    "waits": "{waits:# cambio espera|# cambios esperan} un sí: `/memory pending`.",
    "failed": (
        "No he podido hacerlo ahora: el modelo no respondió como debía. No se ha perdido nada; lo intentaré otra vez."
    ),
    "no_changes": "Dream todavía no ha cambiado nada aquí. `/dream` lo pone en marcha ahora.",
    "log_title": (
        "Lo que Dream cambió aquí, lo más reciente primero. `/dream-restore <cambio>` vuelve al estado anterior a ese."
    ),
    "log_line": "`{sha}` {at}: {names}",
    "not_dreams": "Ese cambio no era de Dream; `/memory diff {sha}` lo muestra.",
    "restored": (
        "Hecho: lo que recuerdo está como antes de `{sha}`, y lo que otros cambiaron desde entonces se conserva ("
        "{kept}). Cuenta a partir de tu próximo mensaje; `/memory undo` lo deshace."
    ),
    "is_so": "Lo que recuerdo ya está así.",
    "in_the_way": (
        "No puedo volver al estado anterior a `{sha}`: `{other}` cambió después las mismas líneas, o hizo olvidar algo."
        " `/memory undo {sha}` deshace solo ese cambio donde se pueda."
    ),
}
