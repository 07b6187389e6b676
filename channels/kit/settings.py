"""Validators of channel settings: the shape of tokens and addresses, and what to do about a wrong one.

Use them as `Annotated[SecretStr | None, secret_matching(...)]`. No platform's library is imported here: settings are
read on every start.
"""

from __future__ import annotations

import re

from pydantic import AfterValidator, SecretStr

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
