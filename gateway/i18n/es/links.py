"""Spanish: the area `links`; English says what each sentence is for."""

SENTENCES = {
    "only_direct": "Las cuentas se vinculan en un mensaje directo conmigo, no aquí.",
    "burnt": (
        "Otros pueden leer aquí ese código, así que lo he anulado. Empieza de nuevo con `/link` en un mensaje directo."
    ),
    "needless": "No hay nada que vincular: aquí todo tiene una sola memoria, escriba quien escriba.",
    "linked": "Estas cuentas son una sola persona:",
    "code": (
        "Para vincular otra cuenta tuya, escríbeme desde ella, en un mensaje directo: `/link {code}`\nEl código vale"
        " una vez y durante diez minutos. No se lo des a nadie: quien lo use y reciba tu sí leerá lo que recuerdo de"
        " ti."
    ),
    "locked": "Han sido demasiados códigos erróneos. Inténtalo en {minutes:# minuto|# minutos}.",
    "wrong": "No conozco ese código, o ya no vale. `/link` en la otra cuenta da uno nuevo.",
    "own": "Esa ya es la misma persona. Escribe el código en la otra cuenta.",
    "question": (
        "Aquí eres {mine}. Si dices que sí, {other} y tú seréis para mí una sola persona: **{other} leerá lo que"
        " recuerdo de ti**, con todo lo dicho en este chat directo, podrá decidir lo que tú puedes, y tú leerás lo"
        " suyo. Di que sí solo si las dos son tuyas: `/link yes` o `/link no`. Hace falta un sí en ambos lados, en"
        " diez minutos."
    ),
    "yes": "Sí, las dos son mías",
    "no": "No",
    "waits_for_other": "Anotado. Ahora {other} también tiene que decir que sí.",
    "done": "Ambas dijeron que sí. En un momento serán para mí una sola persona; `/unlink` las vuelve a separar.",
    "refused": "No se vinculó nada.",
    "refused_by_other": "La otra cuenta dijo que no, así que no se vinculó nada.",
    "nothing_asked": "Nada espera tu sí. `/link` empieza.",
    "not_linked": "Ninguna otra cuenta está vinculada con esta.",
    "unlink_which": "¿Cuál debe seguir su propio camino? `/unlink <número>`",
    "unlinking": (
        "En un momento `{account}` vuelve a ser una persona aparte. Se lleva lo que allí se dijo y se recordó; lo"
        " mezclado se queda con `{survivor}`. Ambas conversaciones empiezan de nuevo, y lo que respondí mientras eran"
        " una se borra de mis registros de ambas."
    ),
    "share_what": "Dime qué puede saber todo el mundo: `/share los viernes cerramos`.",
    "too_long": "Un dato tiene {most} caracteres como mucho; dilo con menos palabras, o en varios datos.",
    "unshare_what": "Dime qué palabras retirar, al menos {least} caracteres: `/unshare los viernes cerramos`.",
    "shared": (
        "A partir de ahora lo sé en todos los chats. `/memory shared` lo muestra, `/unshare <palabras>` lo retira."
    ),
    "unshared": "He retirado {lines:# línea|# líneas}; ningún chat lo sabrá desde su próximo mensaje.",
    "nothing_shared_so": "Nada de lo compartido tiene estas palabras.",
    "nothing_shared": "Todavía no hay nada compartido con todos.",
    "shared_title": "Esto es lo que sé en todos los chats; decide el dueño:",
}
