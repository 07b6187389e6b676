"""Spanish: the area `pool`; English says what each sentence is for."""

SENTENCES = {
    "full": (
        "Me esperan demasiados mensajes (como mucho {limit} en un chat), así que no he aceptado este. Envíalo otra"
        " vez un poco más tarde, por favor."
    ),
    "expired": (
        "Estuve fuera más de un día, así que dejé sin respuesta lo que escribiste mientras tanto. Pregunta otra vez,"
        " por favor."
    ),
    "set_aside": (
        "No pude recibir un mensaje tuyo: al leerlo dejé de funcionar varias veces. Lo he apartado, y quien"
        " me administra lo sabe. Exprésalo de otra manera, por favor."
    ),
}
