"""German: the area `search`; English says what each sentence is for."""

SENTENCES = {
    "what": "Sag, wonach ich suchen soll: `/search Adresse der Zahnärztin`",
    "nothing": "Dazu wurde hier nichts gesagt, und gemerkt habe ich mir dazu auch nichts.",
    "found": "Die besten Stellen, die beste zuerst:",
    "bot": "ich",
    "by_words": "Gesucht habe ich gerade nur nach Wörtern; vielleicht helfen andere Worte für dasselbe.",
    "building": "Ich gehe noch durch, was hier gesagt wurde; frag in einer Minute noch einmal nach mehr.",
}
