"""What is said when no model is configured: what this is, what it can do, and how to get more."""

SENTENCES = {
    "remembered": "Noted. I will remember: {fact}",
    "not_remembered": "I could not note that. Please try again.",
    "found": "This is what I remember about that:\n\n{hits}",
    "nothing": "I remember nothing about that.",
    "not_searched": "I cannot look into my memory right now.",
    "abilities": (
        "No language model is set up, so I cannot hold a conversation yet. This works already:\n\n- “remember "
        "that …” keeps a fact, and asking about it finds it again\n- `/search …` finds what was said or "
        "remembered here\n- files that you send are kept\n- `/help` lists what else I understand"
    ),
    "no_model": "No language model is set up, so I keep what you tell me and find it again, and cannot say more.",
    "setup": "Whoever runs me can set up a language model with `{command}` and then start me again.",
    "hint": "“{question}” tells what works without a language model.",
    "start": (
        "Hello, I am Parlour. No language model is set up yet: I keep what you tell me and find it again, and "
        "cannot say more.\n\n- `/remember …` keeps a fact\n- `/search …` finds it again\n- `/help` lists what I "
        "understand"
    ),
}
