"""Addresses of links in pages and search results."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_TRACKING = re.compile(
    r"utm_\w+|fbclid|gclid|dclid|gbraid|wbraid|msclkid|yclid|twclid|igshid|mc_[ce]id|_hs(?:enc|mi)|ref_src|vero_id"
    r"|oly_(?:anon|enc)_id|mkt_tok|s_cid|wt_mc|at_(?:medium|campaign)",
    re.IGNORECASE,
)


def clean_link(address: str) -> str:
    """Return *address* without tracking parameters; "" if it leads to no web page."""
    try:
        parts = urlsplit(address.strip())
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or port == 0:
        return ""
    if any(sign in address for sign in "<>\"'`\\") or not address.isprintable():
        return ""
    query = parts.query
    if _TRACKING.search(query):
        pairs = parse_qsl(query, keep_blank_values=True)
        query = urlencode([(name, value) for name, value in pairs if not _TRACKING.fullmatch(name)])
    # Spaces and parentheses would end the link in Markdown.
    return urlunsplit(parts._replace(query=query)).translate(_QUOTED)


_QUOTED = str.maketrans({" ": "%20", "(": "%28", ")": "%29", "[": "%5B", "]": "%5D"})
