"""German: the area `delivery`; English says what each sentence is for."""

SENTENCES = {
    "may_repeat": "(Vielleicht hast du das schon gesehen: Ich weiß nicht, ob es angekommen war.)",
    "cut": "(Meine Antwort war zu lang und endet hier. Bitte mich um den Rest oder um eine kürzere.)",
    "stopped_here": "(Hier abgebrochen.)",
    "outcome_unknown": "Ich weiß nicht, ob das geschehen ist: {what} (Ref. {reference}).",
    "staged_dropped": "Was ich mir dabei merken oder mitschicken wollte, habe ich verworfen.",
    "goes_on": "(Die Antwort geht weiter; gleich kommt alles.)",
    "next_message": "(Siehe meine nächste Nachricht.)",
    "in_the_file": "Die ganze Antwort steht in der Datei.",
    "no_files": "(Hierher gehört eine Datei, {name}, aber in diesem Chat kann ich keine Dateien schicken.)",
    "file_large": "(Hierher gehört eine Datei, {name}, aber sie hat {size}, und ich kann höchstens {limit} schicken.)",
    "file_lost": "(Hierher gehört eine Datei, {name}, aber ich habe sie nicht mehr.)",
    "file_refused": "(Hierher gehört eine Datei, {name}, aber sie wurde nicht angenommen.)",
    "placeholder": "…",
    "working": "Ich bin noch dabei. /stop bricht ab.",
    "doing": "{what}. /stop bricht ab.",
}
