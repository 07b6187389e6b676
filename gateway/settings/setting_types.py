"""The shapes that settings take more than once, and their errors as lines that a person can act on.

No error repeats a value: it may be a secret.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from gateway.i18n import list_languages, resolve_language
from gateway.i18n.formats import find_zone, is_zone
from gateway.net.addresses import ProxyAddress

# What a backup writes in the place of a secret; a restored home must not start with it.
LEFT_OUT = "left-out-of-the-backup"


SHORTEST_KEY = 32  # characters


class FrozenModel(BaseModel):
    """A group of settings: read once, never changed, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _whole_secret(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value()
    if not value:
        raise ValueError("is empty; give it a value, or remove it")
    if value == LEFT_OUT:
        raise ValueError("is missing, because backups contain no secrets; put the secret back")
    if value != value.strip() or not value.isprintable():
        raise ValueError("contains a space or an invisible character; copy it again")
    return secret


def _long_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < SHORTEST_KEY:
        raise ValueError(f"is a key, of {SHORTEST_KEY} or more random characters")
    return secret


def split_list(value: object) -> object:
    """Read a list written as text: JSON, or commas. Blanks are forgiven after a comma only."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("looks like a JSON list, but is not valid JSON; fix it, or use commas") from None
    return re.split(r",[ \t]*", value) if value else []


def valid_zone(name: str) -> str:
    """Return *name* when it is an IANA time zone; raise ValueError otherwise."""
    if is_zone(name):
        return name
    found = find_zone(name)
    near = " or ".join([found.name] if found.name else found.near)
    meant = f"; did you mean {near}?" if near else ""
    raise ValueError(f"{name!r} is not a time zone; use an IANA name such as Europe/Berlin or UTC{meant}")


def _language(code: str) -> str:
    language = resolve_language(code)
    if not language:
        raise ValueError(f"{code!r} is not a supported language; available: {list_languages()}")
    return language


def _address(schemes: tuple[str, ...], text: str) -> str:
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not text.isprintable() or " " in text:
        raise ValueError(f"must be a complete address starting with {' or '.join(f'{name}://' for name in schemes)}")
    return text


def _web_address(text: str) -> str:
    return _address(("https", "http"), text)


def _secret_web_address(secret: SecretStr) -> SecretStr:
    _address(("https", "http"), secret.get_secret_value())
    return secret


def _proxy(secret: SecretStr) -> SecretStr:
    ProxyAddress.parse(secret.get_secret_value())
    return secret


def _store_address(secret: SecretStr) -> SecretStr:
    url = secret.get_secret_value()
    # The host may stand in the parameters (a socket's folder) or in a file of libpq's: postgresql://?service=parlour
    if url and not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must be an address starting with postgresql://, or empty for the embedded store")
    return secret


def _object_address(text: str) -> str:
    parts = urlsplit(text)
    is_directory = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
    is_bucket = parts.scheme == "s3" and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc) is not None
    is_bucket = is_bucket and {"", ".", ".."}.isdisjoint((parts.path.strip("/") or "-").split("/"))
    if not (is_directory or is_bucket) or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError(
            "must be s3://bucket or s3://bucket/prefix, or file:///directory; no part of a prefix is empty, . or .."
        )
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address or network; write it as 10.0.0.1 or 10.0.0.0/8") from None
    return text


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def _false_is_off(value: object) -> object:
    # JSON, TOML and the environment may say false where the word is "off".
    return "off" if value is False or value == "false" else value


Secret = Annotated[SecretStr, AfterValidator(_whole_secret)]
MaybeSecret = Annotated[Secret | None, BeforeValidator(_empty_is_none)]  # where a seed prints an empty one
LoginKey = Annotated[Secret, AfterValidator(_long_secret)]
TextList = Annotated[tuple[str, ...], BeforeValidator(split_list)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(split_list)]
TimeZone = Annotated[str, AfterValidator(valid_zone)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
MaybeWebAddress = Annotated[WebAddress | None, BeforeValidator(_empty_is_none)]
SecretWebAddress = Annotated[Secret, AfterValidator(_secret_web_address)]
Proxy = Annotated[Secret, AfterValidator(_proxy)]
StoreAddress = Annotated[SecretStr, AfterValidator(_store_address)]
MaybeObjectAddress = Annotated[Annotated[str, AfterValidator(_object_address)] | None, BeforeValidator(_empty_is_none)]
Language = Annotated[str, AfterValidator(_language)]  # one of gateway.i18n
Seconds = Annotated[float, Field(gt=0, le=86_400)]
MaybeEffort = Annotated[Literal["none", "low", "medium", "high"] | None, BeforeValidator(_empty_is_none)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]  # US
Count = Annotated[int, Field(ge=1, le=1_000_000)]
GroupPolicy = Annotated[Literal["mention", "open", "off"], BeforeValidator(_false_is_off)]
ReplyIn = Literal["thread", "channel"]
Merge = Annotated[Literal["split", "burst", "off"], BeforeValidator(_false_is_off)]


Context = Mapping[str, Any]

_SENTENCES: Mapping[str, Callable[[Context], str]] = {
    "missing": lambda _: "is required; set it",
    "int_parsing": lambda _: "must be a whole number",
    "int_type": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_parsing": lambda _: "must be a number",
    "float_type": lambda _: "must be a number",
    "bool_parsing": lambda _: "must be true or false",
    "bool_type": lambda _: "must be true or false",
    "greater_than": lambda context: f"must be more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"must be at least {context['ge']:g}",
    "less_than_equal": lambda context: f"must be at most {context['le']:g}",
    "literal_error": lambda context: f"must be {context['expected']}",
    "string_type": lambda _: "must be text; put it in quotes",
    "string_too_short": lambda _: "is empty; give it a value, or remove it",
    "tuple_type": lambda _: "must be a list, as JSON or separated by commas",
    "list_type": lambda _: "must be a list, as JSON or separated by commas",
    "model_type": lambda _: "must be a group of settings, not one value",
    "model_attributes_type": lambda _: "must be a group of settings, not one value",
    "dict_type": lambda _: "must be a group of settings, not one value",
    "mapping_type": lambda _: "must be a group of settings, not one value",
}


def explain_error(error: Mapping[str, Any], value: object = None) -> str:
    """Return the problem and how to fix it; *value* is only used to suggest a word."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "value_error":
        return str(context["error"])
    sentence = _SENTENCES.get(kind)
    text = sentence(context) if sentence else _generic(str(error["msg"]))
    if kind == "literal_error" and isinstance(value, str):
        words = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        near = difflib.get_close_matches(value.lower(), words, n=1)
        text += f"; did you mean {near[0]}?" if near else ""
    return text


def _generic(message: str) -> str:
    return message[:1].lower() + message[1:]


def errors_by_path(invalid: ValidationError) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Return each error with the path of the setting it is about, list positions left out."""
    found: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
    for error in invalid.errors(include_url=False):
        path = tuple(part for part in error["loc"] if isinstance(part, str) and part != "[key]")
        found.append((path, dict(error)))
    return found


_VERBS = ("is ", "must ", "needs ", "has ", "contains ", "was ", "looks ", "does ", "should ", "cannot ")


def error_line(place: str, text: str) -> str:
    """Join the place and what is wrong there into one line."""
    if not place:
        return text
    return f"{place} {text}" if text.startswith(_VERBS) else f"{place}: {text}"


class DuplicateKey(ValueError):
    """A mapping names the same key twice; the text is the key."""
