"""Spanish: the area `rights`; English says what each sentence is for."""

SENTENCES = {
    "title": "**Lo que guardo de este chat**",
    "memory": (
        "Lo que recuerdo: {remembered:# línea|# líneas}, {summaries:# línea|# líneas} de resumen, {notes:# nota|#"
        " notas}, y versiones anteriores de todo ello. `/memory` lo muestra."
    ),
    "waiting": "{waiting:# cosa que espera|# cosas que esperan} un sí, 14 días como mucho: `/memory pending`.",
    "transcripts": (
        "Lo que se dijo, palabra por palabra: {conversations:# conversación|# conversaciones} desde el {since}."
    ),
    "transcripts_none": "Lo que se dijo, palabra por palabra: todavía nada.",
    "files": "Archivos enviados, en ambos sentidos: {files}, {size}.",
    "index": "Un índice que los vuelve a encontrar, hecho de lo anterior y de nada más.",
    "until_forgotten": "Se queda hasta que alguien de aquí haga que se olvide.",
    "for_days": "Se queda {days:# día|# días}, o hasta que alguien de aquí haga que se olvide.",
    "beside": "**Lo que guardo además, para todos los chats juntos**",
    "journal": (
        "Lo que está en camino: los textos de los mensajes 7 días después de su respuesta, sus números 30, y lo que"
        " no se pudo entregar 90."
    ),
    "usage": (
        "Cuántos tokens llevó cada respuesta, para quién y a qué precio; ninguna palabra. Se guarda para la cuenta."
    ),
    "uploads": "Los archivos que añades en la página, hasta que se envían, dos días como mucho.",
    "quarantine": "Eventos de una plataforma que no pude leer, 90 días como mucho.",
    "operator": (
        "Copias de seguridad, mientras las conserve quien administra esta máquina. Mis registros no tienen palabras"
        " tuyas."
    ),
    "readers": "**Quién puede leerlo**",
    "readers_you": "Tú, y nadie más que me escriba.",
    "readers_group": "Todos los de este chat. Lo que sé de ti por tu chat directo conmigo no está incluido.",
    "readers_operator": "Quien administra esta máquina puede leer sus archivos.",
    "readers_model": (
        "Al proveedor de {models} se le envían, con cada pregunta, la conversación, las imágenes y los textos de sus"
        " archivos y lo que recuerdo aquí; cuánto tiempo los guarda es asunto suyo."
    ),
    "readers_nobody": "Ningún proveedor de modelos: nada de ello sale de esta máquina.",
    "readers_listens": "Al proveedor de {model} se le envían los mensajes de voz.",
    "readers_embeds": "Al proveedor de {model} se le envía lo que se ha de encontrar por su significado.",
    "readers_platform": "Esta aplicación guarda su propia copia de lo que se escribe en ella; ahí no llego.",
    "yours": (
        "**Lo que puedes hacer**\n- `/memory` muestra, explica y retira lo que recuerdo\n- `/forget <palabras>` borra"
        " palabras en todas partes aquí, con `--purge` también en sus versiones anteriores; `/forget everything` lo"
        " borra todo\n- un mensaje que borras se borra también aquí, y se te pregunta por lo que hice con él\n- "
        "`/export`, en un chat directo, te envía todo lo que se guarda de ti"
    ),
    "export_begun": "Estoy reuniendo lo que guardo de ti. Llega aquí como archivo, en un momento.",
    "export_under_way": "Ya estoy en ello; el archivo llega aquí.",
    "export_here_not": "Eso solo lo envío a un chat directo. Escríbeme allí `/export`.",
    "export_no_files": (
        "En este chat no se pueden enviar archivos. Quien administra esta máquina puede hacerte una exportación: "
        "`parlour people export`."
    ),
    "export_done": (
        "Esto es lo que guardo de ti, en {files:# archivo|# archivos}: memoria, conversaciones como texto y como"
        " datos, archivos, uso. Quito mi copia al cabo de un día."
    ),
    "export_left_out": (
        "{count:# archivo es demasiado grande para enviarlo aquí y falta|# archivos son demasiado grandes para"
        " enviarlos aquí y faltan}; README.md dice qué falta, y quien administra esta máquina puede enviártelo todo: "
        "`parlour people export`."
    ),
    "readme": (
        "# Lo que Parlour guarda de ti, {day}\n\n{files:# archivo|# archivos}:\n\n- `memory/`: lo que se recuerda,"
        " resúmenes, notas, lo que espera un sí\n- `conversations/`: lo que se dijo, como texto (.md) y tal como se"
        " guarda (.jsonl)\n- `files/`: lo que se envió, en ambos sentidos\n- `usage.csv`: lo que llevaron las"
        " respuestas\n\nNo está dentro: lo que dijeron otros antes de que llamaras al bot, versiones anteriores de lo"
        " que se recuerda, y estos archivos, que son demasiado grandes:\n\n{left_out}\n"
    ),
}
