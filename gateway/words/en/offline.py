"""What is said when no model is configured: what this is, what it can do, and how to get more."""

SENTENCES = {
    "remembered": "Noted. I will remember: {fact}",
    "not_remembered": "I could not note that. Please try again.",
    "found": (
        "This is what I remember about that:\n\n{hits}\n\nNo language model is configured, so I looked it up and cannot"
        " say more than that."
    ),
    "nothing": "I remember nothing about that. {setup}",
    "not_searched": "I cannot look into my memory right now. {setup}",
    "setup": (
        "No language model is configured, so I cannot hold a conversation: I keep what you tell me (“remember that …”)"
        " and find it again when you ask. Whoever runs me can set `PARLOUR_LLM__MODEL` (for example"
        " `openai/gpt-4o-mini`, with `PARLOUR_LLM__API_KEY`) and start me again."
    ),
}
