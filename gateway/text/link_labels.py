"""Link labels that claim another host than the one that the link leads to."""

from __future__ import annotations

import re

# Two expressions that never backtrack: one that requires a last label of letters is quadratic in `a.a.a.`.
_DOTTED_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_LETTERS_AFTER_DOT = re.compile(r"\.[^\W\d_]{2,}")


def names_other_host(label: str, host: str) -> bool:
    """Return True if *label* contains what reads as a host name, and it is not *host*.

    A leading `www.` and the case make no difference. The cost is linear in the length of *label*.
    """
    actual = _bare_host(host)
    names = (name for name in _DOTTED_NAME.findall(label) if _LETTERS_AFTER_DOT.search(name))
    return any(_bare_host(name) != actual for name in names)


def _bare_host(host: str) -> str:
    return host.lower().removeprefix("www.")
