"""Code that the model writes, run where it reaches nothing."""
