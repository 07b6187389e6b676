"""Spanish: the area `frames`; English says what each sentence is for."""

SENTENCES = {
    "bad": "No pude leer lo que envió esta ventana. Recargar suele ayudar.",
    "empty": "Este mensaje está vacío.",
    "long": "Este mensaje es demasiado largo. El límite es de {limit} caracteres.",
    "later": "Ahora mismo no puedo guardar mensajes. El tuyo se queda aquí y se envía otra vez por sí solo.",
    "full": (
        "Esperan demasiados mensajes en este chat, así que este no se aceptó. Envíalo otra vez más tarde, por favor."
    ),
    "windows": "Tienes {most} ventanas abiertas. Cierra una y recarga esta página.",
    "file_gone": "Un archivo de este mensaje ya no está aquí. Añádelo otra vez, por favor.",
    "rejected": "Este mensaje no se aceptó.",
}
