"""German: the area `usage`; English says what each sentence is for."""

SENTENCES = {
    "left_person_turns": "Du kannst innerhalb von zehn Minuten noch {left} von {limit:# Frage|# Fragen} stellen.",
    "left_person_tokens": "Von deinen {limit:# Token|# Tokens} für heute sind noch {left} übrig.",
    "left_chat_turns": (
        "In diesem Chat sind innerhalb von zehn Minuten noch {left} von {limit:# Frage|# Fragen} möglich."
    ),
    "left_chat_tokens": "Von den {limit:# Token|# Tokens} dieses Chats für heute sind noch {left} übrig.",
    "left_house_tokens": "Von den {limit:# Token|# Tokens} aller für heute sind noch {left} übrig.",
    "spent_person_turns": (
        "{limit:Deine eine Frage|Deine # Fragen} innerhalb von zehn Minuten {limit:ist|sind} bis {until} aufgebraucht."
    ),
    "spent_person_tokens": "Deine {limit:# Token|# Tokens} für heute sind verbraucht; neue gibt es ab {until}.",
    "spent_chat_turns": (
        "Die {limit:# Frage|# Fragen} dieses Chats innerhalb von zehn Minuten {limit:ist|sind} bis {until}"
        " aufgebraucht."
    ),
    "spent_chat_tokens": (
        "Die {limit:# Token|# Tokens} dieses Chats für heute sind verbraucht; neue gibt es ab {until}."
    ),
    "spent_house_tokens": "Die {limit:# Token|# Tokens} aller für heute sind verbraucht; neue gibt es ab {until}.",
}
