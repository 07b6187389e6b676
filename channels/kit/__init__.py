"""Mechanisms that every chat platform needs; a channel adds only what is its platform's own.

`chat_facts` expiring look-ups, and threads that need no mention; `reactions` acknowledging reactions, which no kill
leaves, and presses and commands that wait; `background` tasks, typing indicators, token buckets and limits for each
person or chat; `bodies` request bodies, files, receipts, and uploads that wait for their message. The validators
of settings are here: the shape of tokens and addresses, and what to do about a wrong one. Use them as
`Annotated[SecretStr | None, secret_matching(...)]`.

Token buckets are our own because aiolimiter can only wait: delivery needs the delay as a number (`RetryLater`), and
previews are dropped while few calls are left.

No platform's library is imported here or in a package of a channel: settings are read on every start.
"""

from __future__ import annotations

import re

from pydantic import AfterValidator, SecretStr

_PERSON_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}\Z")
_EMPTY = "is empty; give it a value, or remove it"


def secret_matching(pattern: str, error: str, *, empty: str = _EMPTY) -> AfterValidator:
    """Return a validator that raises ValueError(*error*) for a secret that *pattern* does not match as a whole.

    The error for an empty secret is *empty*.
    """
    shape = re.compile(pattern, re.ASCII)

    def check(secret: SecretStr | None) -> SecretStr | None:
        if secret is None:
            return None
        if not secret.get_secret_value():
            raise ValueError(empty)
        if not shape.fullmatch(secret.get_secret_value()):
            raise ValueError(error)
        return secret

    return AfterValidator(check)


def text_matching(pattern: str, error: str) -> AfterValidator:
    """Return a validator that raises ValueError(*error*) for a text that *pattern* does not match as a whole."""
    shape = re.compile(pattern)

    def check(text: str) -> str:
        if not shape.fullmatch(text):
            raise ValueError(error)
        return text

    return AfterValidator(check)


def is_person_name(text: str) -> bool:
    """Return True if *text* can name a user of the page and of the API: it fits a session key."""
    return _PERSON_NAME.match(text) is not None
