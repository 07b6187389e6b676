"""`python -m parlour` is the command `parlour`."""

from parlour import main

main()
