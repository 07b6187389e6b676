"""The shapes that settings take more than once: secrets, lists, times, addresses."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from gateway.i18n.languages import list_languages, resolve_language
from gateway.i18n.time_zones import find_zone, is_zone
from gateway.net.addresses import ProxyAddress

# What a backup writes in the place of a secret; a restored home must not start with it.
LEFT_OUT = "left-out-of-the-backup"


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
TextList = Annotated[tuple[str, ...], BeforeValidator(split_list)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(split_list)]
TimeZone = Annotated[str, AfterValidator(valid_zone)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
MaybeWebAddress = Annotated[WebAddress | None, BeforeValidator(_empty_is_none)]
SecretWebAddress = Annotated[Secret, AfterValidator(_secret_web_address)]
Proxy = Annotated[Secret, AfterValidator(_proxy)]
StoreAddress = Annotated[SecretStr, AfterValidator(_store_address)]
MaybeObjectAddress = Annotated[Annotated[str, AfterValidator(_object_address)] | None, BeforeValidator(_empty_is_none)]
Language = Annotated[str, AfterValidator(_language)]  # one of gateway.i18n.languages
Seconds = Annotated[float, Field(gt=0, le=86_400)]
MaybeEffort = Annotated[Literal["none", "low", "medium", "high"] | None, BeforeValidator(_empty_is_none)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]  # US
Count = Annotated[int, Field(ge=1, le=1_000_000)]
GroupPolicy = Annotated[Literal["mention", "open", "off"], BeforeValidator(_false_is_off)]
ReplyIn = Literal["thread", "channel"]
Merge = Annotated[Literal["split", "burst", "off"], BeforeValidator(_false_is_off)]
