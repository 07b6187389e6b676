"""What /search says."""

from __future__ import annotations

SENTENCES = {
    "what": "Say what to look for: `/search the address of the dentist`",
    "nothing": "Nothing like that was said or remembered here.",
    "found": "The best places, the best first:",
    "bot": "me",
}
