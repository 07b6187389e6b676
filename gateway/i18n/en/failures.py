"""What a person reads when something fails: cause in plain words, what to do. Keys are failure names."""

SENTENCES = {
    "busy": "The model is busy right now. Please send your message again in a minute, or use /retry.",
    "unreachable": "I cannot reach the model right now. /retry tries your last message again.",
    "timeout": "The model did not answer in time. /retry tries your last message again.",
    "refused": "The model does not accept this request. Whoever runs me has to look at the settings.",
    "garbled": "The model gave an answer that I could not read. /retry tries your last message again.",
    "overflow": "This conversation no longer fits the model. /new starts a fresh one.",
    "empty": "The model gave no answer. /retry tries your last message again.",
    "loop": "I went round in circles with this, so I stopped. Could you put it differently?",
    "bug": "Something went wrong on my side. /retry tries your last message again.",
    "poison": "Your message made me stumble three times, so I set it aside. Could you put it differently?",
    "reference": "{text} (ref {reference})",
}
