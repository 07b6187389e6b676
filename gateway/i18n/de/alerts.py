"""German: the area `alerts`; English says what each sentence is for."""

SENTENCES = {
    "channel_down": (
        "Ich höre seit {since} nichts von {channel}. Ich versuche es weiter; `parlour doctor` auf meinem Rechner sagt"
        " vielleicht, woran es liegt."
    ),
    "channel_token": (
        "{channel} lässt mich nicht hinein: Mein Token wird abgelehnt. Dort wird niemand gehört, bis es einen"
        " neuen gibt; `parlour doctor` auf meinem Rechner sagt, woher er kommt."
    ),
    "channel_refused": (
        "{channel} lässt mich nicht hinein, so wie es dort eingerichtet ist. `parlour doctor` auf meinem Rechner"
        " sagt, was zu ändern ist."
    ),
    "over_channel": "Ich höre {channel} wieder. Seit {since} war nichts zu hören.",
    "delivery_delayed": (
        "{channel} nimmt meine Antworten in einigen Chats seit {since} nicht an. Verloren geht nichts: Um {until}"
        " versuche ich es wieder, und dann weiter. `parlour status` auf meinem Rechner sagt, welche Chats es sind und"
        " warum."
    ),
    "over_delay": "Meine Antworten kommen bei {channel} wieder an. Einige waren seit {since} verzögert.",
    "model_failing": (
        "Seit {since} hat kein Modell mehr geantwortet, und wer mir schreibt, wird gebeten, es noch einmal zu"
        " versuchen. `parlour doctor --model` auf meinem Rechner sagt, woran es liegt."
    ),
    "over_model": "Das Modell antwortet wieder. Seit {since} hatte es geschwiegen.",
    "given_up": (
        "Ich musste {count:eine Nachricht|# Nachrichten} aufgeben, zuletzt in {chat}: {reason} `parlour turn {turn}`"
        " auf meinem Rechner erzählt die ganze Geschichte."
    ),
    "because_blocked": "Dort nimmt man von mir keine Nachrichten mehr an.",
    "because_gone": "Die Plattform kennt den Chat nicht oder nicht mehr.",
    "because_outside": "Ich bin in dem Chat kein Mitglied oder darf ihn nicht sehen.",
    "because_rights": "Ich darf dort nicht schreiben.",
    "because_size": "Sie ist größer, als die Plattform annimmt.",
    "because_attempts": "Die Plattform hat sie nicht angenommen, sooft ich es auch versucht habe.",
    "because_poison": "Ich bin wieder und wieder darüber gestolpert.",
    "because_other": "Sie wurde endgültig abgelehnt.",
    "disk_low": "Die Platte, auf die ich schreibe, ist fast voll: {free} sind noch frei. Bitte schaff Platz.",
    "disk_full": (
        "Die Platte, auf die ich schreibe, ist voll: {free} sind noch frei. Was ich nicht speichern kann, bestätige"
        " ich nicht; verloren geht also nichts, aber bald wird niemand mehr gehört. Bitte schaff jetzt Platz."
    ),
    "over_disk": "Auf der Platte ist wieder Platz.",
    "cap_near": "{percent} % der Tokens von heute sind verbraucht: {used} von {limit}.",
    "cap_reached": (
        "Die Tokens von heute sind verbraucht: {used} von {limit}. Bis {until} antworte ich niemandem. Mehr erlaubt"
        " PARLOUR_CAPS__TOKENS_PER_DAY nach einem Neustart."
    ),
    "over_cap": "Ein neuer Tag hat begonnen, und ich antworte wieder.",
    "set_aside": (
        "Ich habe {count:ein Ereignis|# Ereignisse} beiseitegelegt, mit denen ich nicht zurechtkam, zuletzt von "
        "{channel}. Sonst hält das nichts auf; `parlour quarantine list` auf meinem Rechner zeigt, was es war."
    ),
    "killed": (
        "Ich habe nicht von selbst aufgehört, ich wurde gewaltsam beendet{count:|, # Mal}, zuletzt vor {since}. Was"
        " da noch offen war, wird jetzt zu Ende gebracht. Mein Log und der Speicher, den ich bekomme, sagen"
        " vielleicht, warum."
    ),
    "login_codes": (
        "Vielleicht rät jemand Anmeldecodes für {channel}: {count:einer war|# waren} innerhalb einer Stunde falsch."
        " Hereingekommen ist damit niemand, und ein Code von `parlour web login` gilt weiterhin."
    ),
    "owner_codes": (
        "Vielleicht rät jemand auf {channel} den Code, der zum Eigentümer macht: {count:einer war|# waren} innerhalb"
        " einer Stunde falsch. Der Code, den `parlour owner claim` ausgegeben hat, gilt weiterhin."
    ),
    "strangers": (
        "Heute haben mir auf {channel} mehr Unbekannte geschrieben, als ich beantworte: {count:eine Nachricht"
        " blieb|# Nachrichten blieben} ohne Antwort. Wer zugelassen ist, merkt davon nichts; `parlour why {channel}`"
        " auf meinem Rechner zeigt, wer es war."
    ),
}
