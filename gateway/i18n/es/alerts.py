"""Spanish: the area `alerts`; English says what each sentence is for."""

SENTENCES = {
    "channel_down": (
        "No oigo nada de {channel} desde {since}. Sigo intentándolo; `parlour doctor` en mi máquina quizá diga qué"
        " pasa."
    ),
    "channel_token": (
        "{channel} no me deja entrar: rechaza mi token. Allí no se oye a nadie hasta que tenga uno nuevo; "
        "`parlour doctor` en mi máquina dice dónde conseguirlo."
    ),
    "channel_refused": (
        "{channel} no me deja entrar tal como está configurado allí. `parlour doctor` en mi máquina dice qué cambiar."
    ),
    "over_channel": "Vuelvo a oír {channel}. No lo oía desde {since}.",
    "delivery_delayed": (
        "{channel} no acepta mis respuestas en algunos chats desde {since}. Nada se pierde: vuelvo a intentarlo a las"
        " {until} y sigo después. `parlour status` en mi máquina dice qué chats son y por qué."
    ),
    "over_delay": "Mis respuestas vuelven a llegar a {channel}. Algunas llevaban retraso desde {since}.",
    "model_failing": (
        "Ningún modelo ha respondido desde {since}, y a quien escribe se le pide que lo intente de nuevo. "
        "`parlour doctor --model` en mi máquina dice qué pasa."
    ),
    "over_model": "El modelo vuelve a responder. No lo hacía desde {since}.",
    "given_up": (
        "He tenido que renunciar a {count:un mensaje|# mensajes}, el último en {chat}: {reason} `parlour turn {turn}`"
        " en mi máquina cuenta toda la historia."
    ),
    "because_blocked": "allí ya no aceptan mensajes míos.",
    "because_gone": "la plataforma no conoce ese chat, o ya no.",
    "because_outside": "no soy miembro de ese chat o no puedo verlo.",
    "because_rights": "no tengo permiso para escribir allí.",
    "because_size": "es más grande de lo que acepta la plataforma.",
    "because_attempts": "la plataforma no lo aceptó, por más que lo intenté.",
    "because_poison": "tropecé con ello una y otra vez.",
    "because_other": "se rechazó definitivamente.",
    "disk_low": "El disco en el que escribo está casi lleno: quedan {free}. Libera espacio, por favor.",
    "disk_full": (
        "El disco en el que escribo está lleno: quedan {free}. Lo que no puedo guardar no lo confirmo, así que nada"
        " se pierde, pero pronto no se oirá a nadie. Libera espacio ya, por favor."
    ),
    "over_disk": "Vuelve a haber espacio en el disco.",
    "cap_near": "Se ha gastado el {percent} % de los tokens de hoy: {used} de {limit}.",
    "cap_reached": (
        "Los tokens de hoy se han agotado: {used} de {limit}. Hasta {until} no respondo a nadie."
        " PARLOUR_CAPS__TOKENS_PER_DAY y un reinicio permiten más."
    ),
    "over_cap": "Ha empezado un nuevo día y vuelvo a responder.",
    "set_aside": (
        "He apartado {count:un evento|# eventos} con los que no pude, el último de {channel}. Nada más se detiene por"
        " ello; `parlour quarantine list` en mi máquina muestra qué era."
    ),
    "killed": (
        "No me detuve: me cerraron a la fuerza{count:| # veces}, la última antes de {since}. Lo que quedó a medias se"
        " está terminando ahora. Mi registro y la memoria que me dan quizá digan por qué."
    ),
    "login_codes": (
        "Puede que alguien esté probando códigos de acceso en {channel}: {count:uno fue incorrecto|# fueron"
        " incorrectos} en una hora. Nadie entró así, y un código de `parlour web login` sigue siendo válido."
    ),
    "owner_codes": (
        "Puede que alguien esté probando en {channel} el código que nombra al propietario: {count:uno fue"
        " incorrecto|# fueron incorrectos} en una hora. El código que mostró `parlour owner claim` sigue siendo válido."
    ),
    "strangers": (
        "Hoy me escribieron en {channel} más desconocidos de los que respondo: {count:un mensaje quedó|# mensajes"
        " quedaron} sin respuesta. A quien tiene acceso no le afecta; `parlour why {channel}` en mi máquina muestra"
        " quiénes eran."
    ),
}
