"""What /search says."""

from __future__ import annotations

SENTENCES = {
    "what": "Say what to look for: `/search the address of the dentist`",
    "nothing": "Nothing like that was said or remembered here.",
    "found": "The best places, the best first:",
    "bot": "me",
    "by_words": "I searched by words alone just now, so it may help to try other words for the same thing.",
    "building": "I am still going through what was said here; ask again in a minute for more.",
}
