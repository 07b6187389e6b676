"""How a command is typed in a chat: "/stop", "!stop" or "/parlour stop". Sentences have "/stop" and are rewritten."""

from __future__ import annotations

import re
from functools import lru_cache

SLASH = "/"


class ChatLanguage(str):
    """A language, and what stands before a command's name in the chat that is spoken to in it."""

    __slots__ = ("command_sign",)
    command_sign: str

    def __new__(cls, language: str, command_sign: str) -> ChatLanguage:
        """Return *language* with *command_sign*."""
        made = super().__new__(cls, language)
        made.command_sign = command_sign
        return made


def command_sign(language: str) -> str:
    """Return what stands before a command's name where *language* is spoken."""
    return language.command_sign if isinstance(language, ChatLanguage) else SLASH


@lru_cache(maxsize=4096)
def with_sign(template: str, sign: str, names: tuple[str, ...]) -> str:
    """Return a sentence of the catalogue with *sign* before each of the commands *names*, fields for names included."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w/.:<])/(?=\{{(?:name|near|command)\}}|(?:{known})(?![\w-]))", sign, template)
