"""Documents of a memory scope, changed by compare-and-set, and their versions."""
