"""Spanish: the area `forget`; English says what each sentence is for."""

SENTENCES = {
    "done": (
        "Hecho. He borrado {remembered:# línea recordada|# líneas recordadas}, {summaries:# línea|# líneas} de"
        " resumen y {messages:# mensaje|# mensajes}. Cuenta a partir de tu próximo mensaje."
    ),
    "nothing": "No encontré nada con estas palabras que puedas hacerme olvidar aquí.",
    "others": "Una parte la guardaron otros; un administrador de este chat puede hacer que se olvide.",
    "purge_does": (
        "Versiones anteriores de lo que recuerdo aún lo contienen; `/forget <palabras> --purge` las borra también."
    ),
    "remains": (
        "Adonde no llego: los mensajes en esta misma aplicación, lo que guarda el proveedor del modelo, las copias de"
        " seguridad y lo que se dijo con otras palabras."
    ),
    "purging": (
        "Ahora lo quito de versiones anteriores, archivos, adjuntos, el índice de búsqueda, los eventos apartados y"
        " el diario; sigue por sí solo, también tras un reinicio. Hasta que termine (segundos, por lo general) se"
        " borran también los mensajes con estas palabras."
    ),
    "purging_own": (
        "Ahora quito lo que dijiste e hiciste guardar de versiones anteriores, adjuntos, el índice de búsqueda y el"
        " diario; sigue por sí solo, también tras un reinicio. Lo que dijeron otros, y los resúmenes, puede borrarlo"
        " un administrador de este chat."
    ),
    "remains_purged": (
        "Adonde no llego: los mensajes en esta misma aplicación, lo que guarda el proveedor del modelo, las copias de"
        " seguridad anteriores y lo que se dijo con otras palabras."
    ),
    "beyond_files": "Tampoco cambio lo que hay en `files/`: quita de ahí lo que deba irse.",
    "beyond_downloads": (
        "Los archivos que guardó el chat de la terminal están en `downloads/`, junto a lo que recuerdo; esos no los"
        " toco."
    ),
    "everything_own": (
        "Esto borra todo lo que guardo de ti: lo que recuerdo, todas nuestras conversaciones y sus resúmenes, tus"
        " archivos, tus ajustes, el vínculo entre tus cuentas y tu nombre en las cifras de uso. No se puede deshacer. "
        "`/forget everything yes` lo hace."
    ),
    "everything_chat": (
        "Esto borra todo lo que guardo de este chat: lo que recuerdo aquí, todas las conversaciones conmigo y sus"
        " resúmenes, y los archivos. No se puede deshacer. `/forget everything yes` lo hace."
    ),
    "erased_own": (
        "Hecho: a partir de tu próximo mensaje no sé nada de ti. Las conversaciones y los archivos se están quitando"
        " ahora; sigue por sí solo, también tras un reinicio, y se lleva lo que escribas en los próximos segundos."
    ),
    "erased_chat": (
        "Hecho: a partir del próximo mensaje no sé nada de este chat. Las conversaciones y los archivos se están"
        " quitando ahora; sigue por sí solo, también tras un reinicio, y se lleva lo que se escriba aquí en los"
        " próximos segundos."
    ),
    "remains_own": (
        "Lo que queda, y dónde: lo que dijiste en grupos (allí `/forget <palabras> --purge`, o pídeselo a quien me"
        " administra: puede borrarlo todo de una vez), los mensajes en esta misma aplicación, lo que guarda el"
        " proveedor del modelo, las copias de seguridad anteriores y, durante un máximo de 30 días, los números de"
        " los mensajes, para no responder a ninguno dos veces."
    ),
    "remains_chat": (
        "Lo que queda, y dónde: los mensajes en esta misma aplicación, lo que guarda el proveedor del modelo, las"
        " copias de seguridad anteriores, quién usó cuánto y, durante un máximo de 30 días, los números de los"
        " mensajes, para no responder a ninguno dos veces."
    ),
    "typed": "/forget … --purge",
}
