"""From what was said to what is remembered: which messages, what a model is asked, what becomes of its answer."""
