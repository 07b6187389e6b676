"""What is remembered, by whom, and how it reaches the model."""
