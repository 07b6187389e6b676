"""German: the area `discord`; English says what each sentence is for."""

SENTENCES = {
    "write_privately": (
        "Das ist nur für dich, und du nimmst keine Direktnachrichten von mir an. Schreib mir erst privat."
    ),
    "option": "womit, wo etwas nötig ist",
    "thread": "Gespräch",
}
