"""German: the area `slack`; English says what each sentence is for."""

SENTENCES = {
    "thinking": "denkt nach…",
    "no_files": (
        "Ich kann {name} nicht schicken: Diese App darf hier keine Dateien hochladen (ihr fehlt der Scope files:write)."
    ),
    "write_privately": "Das ist nur für dich, und hier kann ich es nicht zeigen: Schreib mir erst privat.",
}
