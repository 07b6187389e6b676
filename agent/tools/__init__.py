"""Tools: typed async functions that a model may call, and the box that runs them."""
