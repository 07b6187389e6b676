"""A person's rights: to know what is kept of them, and to have it."""
