"""What a conversation sends the model: its window, its snapshot, and keeping both within their budget."""
