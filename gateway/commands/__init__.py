"""The commands of `parlour`; `gateway/cli.py` reads their arguments."""
