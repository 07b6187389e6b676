"""Spanish: the area `model`; English says what each sentence is for."""

SENTENCES = {
    "usual": "Aquí responde {model}, como en todas partes.",
    "chosen": "Aquí responde {model}: se eligió para este chat.",
    "decided": "Aquí responde {model}: lo decidió para este chat quien me administra.",
    "offered": "Puedes elegir:\n{models}\n\n`/model <nombre>` elige uno, `/model default` lo deshace.",
    "none_offered": "No hay otro que elegir.",
    "set": "A partir del próximo mensaje aquí responde {model}.",
    "back": "A partir del próximo mensaje aquí vuelve a responder {model}.",
    "as_before": "Como antes",
    "near": "No conozco ningún modelo llamado {name}. ¿Querías decir {near}?",
    "unknown": "No conozco ningún modelo llamado {name}. Puedes elegir: {models}.",
    "lost": "(`{lost}`, que se eligió para este chat, ya no se puede elegir; en su lugar responde {model}.)",
}
