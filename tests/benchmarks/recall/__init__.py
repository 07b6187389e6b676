"""How well memory finds what was said: LoCoMo and hand-written sets, by path or address; see `python -m … --help`."""
