"""Spanish: the area `slack`; English says what each sentence is for."""

SENTENCES = {
    "thinking": "está pensando…",
    "no_files": (
        "No puedo enviar {name}: esta aplicación no puede subir archivos aquí (le falta el permiso files:write)."
    ),
    "write_privately": "Esto es solo para ti, y aquí no puedo mostrarlo: escríbeme antes en privado.",
}
