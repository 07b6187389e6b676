"""Spanish: the area `discord`; English says what each sentence is for."""

SENTENCES = {
    "write_privately": "Esto es solo para ti, y no aceptas mensajes directos míos. Escríbeme antes en privado.",
    "option": "con qué hacerlo, donde haga falta algo",
    "thread": "Conversación",
}
