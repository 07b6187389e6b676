"""Files of conversations, and messages as a transcript has them."""
