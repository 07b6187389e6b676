"""German: the area `links`; English says what each sentence is for."""

SENTENCES = {
    "only_direct": "Konten werden in einer Direktnachricht mit mir verknüpft, nicht hier.",
    "burnt": (
        "Diesen Code können hier andere lesen, deshalb habe ich ihn zurückgenommen. Fang mit `/link` in einer"
        " Direktnachricht neu an."
    ),
    "needless": "Hier gibt es nichts zu verknüpfen: Alles hier hat ein einziges Gedächtnis, wer auch schreibt.",
    "linked": "Diese Konten sind eine Person:",
    "code": (
        "Um ein anderes Konto von dir zu verknüpfen, schreib mir von dort aus in einer Direktnachricht: `/link {code}"
        "`\nDer Code gilt einmal und zehn Minuten lang. Gib ihn niemandem: Wer ihn benutzt und dein Ja bekommt,"
        " liest, was ich mir von dir gemerkt habe."
    ),
    "locked": "Das waren zu viele falsche Codes. Versuch es in {minutes:# Minute|# Minuten} wieder.",
    "wrong": "Ich kenne keinen solchen Code, oder er gilt nicht mehr. `/link` im anderen Konto gibt einen neuen.",
    "own": "Das ist schon dieselbe Person. Gib den Code im anderen Konto ein.",
    "question": (
        "Hier bist du {mine}. Wenn du Ja sagst, seid ihr, {other} und du, für mich ab dann eine Person: **{other}"
        " liest, was ich mir von dir gemerkt habe**, mit allem, was in diesem Direktchat gesagt wurde, darf"
        " entscheiden, was du darfst, und du liest, was ich mir dort gemerkt habe. Sag nur Ja, wenn"
        " beide dir gehören: `/link yes` oder `/link no`. Es braucht ein Ja auf beiden Seiten, innerhalb von zehn"
        " Minuten."
    ),
    "yes": "Ja, beide gehören mir",
    "no": "Nein",
    "waits_for_other": "Notiert. Jetzt muss {other} auch Ja sagen.",
    "done": "Beide haben Ja gesagt. Gleich sind sie für mich eine Person; `/unlink` trennt sie wieder.",
    "refused": "Es wurde nichts verknüpft.",
    "refused_by_other": "Das andere Konto hat Nein gesagt, deshalb wurde nichts verknüpft.",
    "nothing_asked": "Nichts wartet auf dein Ja. `/link` fängt an.",
    "not_linked": "Mit diesem Konto ist kein anderes verknüpft.",
    "unlink_which": "Welches soll seinen eigenen Weg gehen? `/unlink <Nummer>`",
    "unlinking": (
        "Gleich ist `{account}` wieder eine eigene Person. Sie nimmt mit, was dort gesagt und gemerkt wurde; was"
        " vermischt ist, bleibt bei `{survivor}`. Beide Gespräche fangen neu an, und was ich geantwortet habe,"
        " solange sie eins waren, wird bei beiden aus meinen Aufzeichnungen gelöscht."
    ),
    "share_what": "Sag mir, was alle wissen dürfen: `/share Freitags ist das Büro zu`.",
    "too_long": "Ein Merksatz hat höchstens {most} Zeichen; bitte sag es kürzer, oder in mehreren Sätzen.",
    "unshare_what": (
        "Sag mir, welche Worte ich zurücknehmen soll, mindestens {least} Zeichen: `/unshare Freitags ist das Büro zu`."
    ),
    "shared": "Das weiß ich ab jetzt in jedem Chat. `/memory shared` zeigt es, `/unshare <Worte>` nimmt es zurück.",
    "unshared": (
        "Ich habe {lines:# Zeile|# Zeilen} zurückgenommen; kein Chat erfährt sie mehr, von seiner nächsten Nachricht"
        " an."
    ),
    "nothing_shared_so": "Nichts von dem, was alle wissen, enthält diese Worte.",
    "nothing_shared": "Noch gibt es nichts, was alle wissen.",
    "shared_title": "Das weiß ich in jedem Chat; wem dieser Bot gehört, entscheidet darüber:",
}
