"""OAuth 2.1 as the client of an authorization server: its metadata, the address to sign in at, codes and refreshes.

Metadata are read when the operator sets logins up, and are pinned with the server (RFC 9728, RFC 8414): while people
sign in, no server says where to. PKCE, `resource` (RFC 8707) and `iss` (RFC 9207) bind a code to its request.
All that a server sends is bounded, and of its texts none but error codes are used.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from agent.mcp.client import ServerAddress
from gateway.errors import ParlourError

if TYPE_CHECKING:
    from gateway.net.public_http import PublicHttpClient

LONGEST_ANSWER = 64 << 10  # bytes of metadata and of an answer with tokens
LONGEST_TOKEN = 16 << 10  # characters
_LONGEST_LIFE = 10 * 365 * 86_400  # seconds that a token is said to be valid
_ALL_PORTS = range(1, 65_536)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CODE = re.compile(r"[a-z_]{1,64}")
_OVER = frozenset({"invalid_grant", "bad_refresh_token"})  # the second is GitHub's
_WITHIN = 25.0  # seconds of a request with the wait for its turn
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_MOST_SCOPES = 50


class OAuthFailed(ParlourError):
    """An authorization server did not do as it was asked. With *is_refused* it has said no, and will again."""

    def __init__(self, text: str, *, is_refused: bool = False) -> None:
        super().__init__(text)
        self.is_refused = is_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginConfig:
    """How people sign in to a server; stored with its pin."""

    resource: str  # the server, as its tokens name it
    issuer: str
    authorize: str  # the address that people open
    token: str
    revoke: str = ""
    client_id: str
    secret: str = field(default="", repr=False)  # sealed
    auth_method: str = "none"  # none, client_secret_basic or client_secret_post
    scopes: Sequence[str] = ()
    sends_issuer: bool = False  # RFC 9207: an answer without `iss` is refused
    is_private: bool = False  # the issuer's address may be one that is not on the public internet


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedTokens:
    """The tokens of one person at one server."""

    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    lifetime: int | None = None  # seconds; None: the server does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """The metadata of a server and its issuer about signing in."""

    resource: str
    issuer: str
    authorize: str
    token: str
    revoke: str
    auth_methods: Sequence[str]
    scopes: Sequence[str]
    sends_issuer: bool
    takes_documents: bool  # a client's id may be the address of its metadata
    is_private: bool


class OAuthClient:
    """Requests to authorization servers, each within 25 seconds and 64 KB, without redirects; eight at once of each."""

    def __init__(self, *, proxy: str) -> None:
        self._proxy = proxy
        self._http: dict[str, PublicHttpClient] = {}  # by origin: one that hangs takes no turn of the others

    async def read_metadata(self, server: ServerAddress, issuer: str = "") -> ServerMetadata:
        """Return the metadata of *server* and of its authorization server, *issuer* if it is given.

        An authorization server at a private address is one at the server's own host, or one that is given, and only
        if the operator has said that the server is private. Raises OAuthFailed.
        """
        resource = await self._read_resource(server)
        named = resource.get("authorization_servers")
        listed = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
        # Without metadata, the protocol of March 2025: the server is its own.
        chosen = issuer or next(iter(listed), "") or _origin(server.url)
        is_private = server.is_private and (bool(issuer) or _origin(chosen) == _origin(server.url))
        _check_address(chosen, "the authorization server", is_private=is_private)
        found = await self._read_issuer(chosen, is_private=is_private)
        return _metadata(server, resource, found, is_private=is_private)

    async def _read_resource(self, server: ServerAddress) -> Mapping[str, Any]:
        """Return the metadata of a protected resource; an empty object if the server has none."""
        path = urlsplit(server.url).path.rstrip("/")
        for suffix in dict.fromkeys((path, "")):
            address = f"{_origin(server.url)}/.well-known/oauth-protected-resource{suffix}"
            found = await self._get(address, is_private=server.is_private)
            if found is not None:
                resource = found.get("resource")
                if not isinstance(resource, str) or not _covers(resource, server.url):
                    raise OAuthFailed("the server's metadata describes another address than its own")
                return found
        return {}

    async def _read_issuer(self, issuer: str, *, is_private: bool) -> Mapping[str, Any]:
        origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
        for address in dict.fromkeys(
            (
                f"{origin}/.well-known/oauth-authorization-server{path}",
                f"{origin}/.well-known/openid-configuration{path}",
                f"{origin}{path}/.well-known/openid-configuration",
            )
        ):
            found = await self._get(address, is_private=is_private)
            if found is not None:
                # RFC 8414, 3.3; the slash at the end is an addition of libraries.
                if str(found.get("issuer")).rstrip("/") != issuer.rstrip("/"):
                    raise OAuthFailed("the metadata of the authorization server describes another one")
                return found
        raise OAuthFailed("the server publishes no metadata for signing in, so nobody can sign in there")

    async def _get(self, address: str, *, is_private: bool) -> Mapping[str, Any] | None:
        """Return the object at *address*; None without one. Raises OAuthFailed."""
        status, found = await self._call("GET", address, is_private=is_private, headers={"Accept": "application/json"})
        return found if status == 200 else None

    # -- people ------------------------------------------------------------------------------------

    async def redeem(
        self, config: LoginConfig, secret: str, *, code: str, verifier: str, redirect: str
    ) -> GrantedTokens:
        """Return the tokens for a *code*. Raises OAuthFailed."""
        fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        return await self._ask_tokens(config, secret, fields)

    async def refresh(self, config: LoginConfig, secret: str, token: str) -> GrantedTokens:
        """Return new tokens for the refresh token *token*, which stays unless it is replaced. Raises OAuthFailed."""
        found = await self._ask_tokens(config, secret, {"grant_type": "refresh_token", "refresh_token": token})
        return GrantedTokens(access=found.access, refresh=found.refresh or token, lifetime=found.lifetime)

    async def revoke(self, config: LoginConfig, secret: str, token: str) -> None:
        """Tell the authorization server that *token* is not used any more (RFC 7009). Raises OAuthFailed."""
        fields, headers = _authenticate(config, secret, {"token": token})
        # RFC 7009, 2.2: the body of the response is ignored; it is often empty.
        status, _ = await self._post(config, config.revoke, fields, headers, has_object=False)
        if status != 200:
            raise OAuthFailed("the authorization server did not revoke the token")

    async def _ask_tokens(self, config: LoginConfig, secret: str, fields: Mapping[str, str]) -> GrantedTokens:
        fields, headers = _authenticate(config, secret, {**fields, "resource": config.resource})
        status, found = await self._post(config, config.token, fields, headers)
        if status == 200 and "error" not in found:  # GitHub refuses with 200
            return _tokens(found)
        code = found.get("error")
        code = code if isinstance(code, str) and _CODE.fullmatch(code) else f"status {status}"
        raise OAuthFailed(f"the authorization server refuses ({code})", is_refused=code in _OVER)

    async def _post(
        self,
        config: LoginConfig,
        address: str,
        fields: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        has_object: bool = True,
    ) -> tuple[int, Any]:
        """Send *fields*; to an address that is not public only if it is the issuer's own. Raises OAuthFailed."""
        is_private = config.is_private and _origin(address) == _origin(config.issuer)
        return await self._call(
            "POST", address, is_private=is_private, has_object=has_object, data=fields, headers=headers
        )

    async def _call(
        self, method: str, address: str, *, is_private: bool, has_object: bool = True, **options: Any
    ) -> tuple[int, Any]:
        """Return the status, and the object of the answer or an empty one.

        Raises OAuthFailed, also for a success without an object if the answer *has_object*.
        """
        from gateway.net.public_http import FetchFailed, PublicHttpClient  # brings aiohttp, which a start does without

        http = self._http.setdefault(_origin(address), PublicHttpClient(proxy=self._proxy))
        try:
            async with asyncio.timeout(_WITHIN):
                found = await http.call_api(method, address, is_public=not is_private, most=LONGEST_ANSWER, **options)
        except TimeoutError:
            raise OAuthFailed(f"{urlsplit(address).hostname}: no response within {_WITHIN:.0f} seconds") from None
        except FetchFailed as error:
            raise OAuthFailed(f"{urlsplit(address).hostname}: {error}") from None
        try:
            value = json.loads(found.body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return found.status, value
        if found.status == 200 and has_object:
            raise OAuthFailed(f"{urlsplit(address).hostname} did not answer as an authorization server")
        return found.status, {}


def sign_in_address(config: LoginConfig, *, redirect: str, state: str, verifier: str) -> str:
    """Return the address at which a person signs in."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    fields = {
        "response_type": "code",
        "client_id": config.client_id,
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": config.resource,
    }
    if config.scopes:
        fields["scope"] = " ".join(config.scopes)
    return f"{config.authorize}{'&' if '?' in config.authorize else '?'}{urlencode(fields, quote_via=quote)}"


def parse_scopes(text: str) -> Sequence[str]:
    """Return the scopes of a text. Raises OAuthFailed."""
    scopes = text.split()
    if len(scopes) > _MOST_SCOPES or not all(map(_SCOPE.fullmatch, scopes)):
        raise OAuthFailed("scopes are words without quotes, with spaces between them")
    return tuple(scopes)


def choose_auth_method(metadata: ServerMetadata, *, has_secret: bool) -> str:
    """Return the method by which the client proves its identity. Raises OAuthFailed."""
    if not has_secret:
        return "none"
    for method in ("client_secret_basic", "client_secret_post"):
        if method in metadata.auth_methods:
            return method
    raise OAuthFailed("the authorization server takes no client secret")


def _metadata(
    server: ServerAddress, resource: Mapping[str, Any], issuer: Mapping[str, Any], *, is_private: bool
) -> ServerMetadata:
    """Return the checked metadata. Raises OAuthFailed."""
    addresses = {}
    for name in ("authorization_endpoint", "token_endpoint", "revocation_endpoint"):
        value = issuer.get(name)
        if value is None and name == "revocation_endpoint":
            value = ""
        elif not isinstance(value, str):
            raise OAuthFailed(f"the metadata of the authorization server has no {name}")
        else:
            own = is_private and _origin(value) == _origin(str(issuer["issuer"]))
            _check_address(value, f"its {name}", is_private=own)
        addresses[name] = value
    if "S256" not in _texts(issuer, "code_challenge_methods_supported"):
        raise OAuthFailed("the authorization server does not say that it supports PKCE (S256)")
    named = resource.get("scopes_supported")
    scopes = " ".join(each for each in named if isinstance(each, str)) if isinstance(named, list) else ""
    return ServerMetadata(
        resource=str(resource.get("resource", server.url)),
        issuer=str(issuer["issuer"]),
        authorize=addresses["authorization_endpoint"],
        token=addresses["token_endpoint"],
        revoke=addresses["revocation_endpoint"],
        auth_methods=_texts(issuer, "token_endpoint_auth_methods_supported") or ("client_secret_basic",),
        scopes=parse_scopes(scopes),
        sends_issuer=issuer.get("authorization_response_iss_parameter_supported") is True,
        takes_documents=issuer.get("client_id_metadata_document_supported") is True,
        is_private=is_private,
    )


def _authenticate(
    config: LoginConfig, secret: str, fields: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the fields and headers of a request of the client."""
    headers = {"Accept": "application/json"}
    if config.auth_method == "client_secret_basic":
        pair = f"{quote(config.client_id, safe='')}:{quote(secret, safe='')}"
        return fields, {**headers, "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    proof = {"client_secret": secret} if config.auth_method == "client_secret_post" else {}
    return {**fields, "client_id": config.client_id, **proof}, headers


def _tokens(answer: Mapping[str, Any]) -> GrantedTokens:
    """Return the tokens of an answer. Raises OAuthFailed."""
    kind, access, refresh = answer.get("token_type"), answer.get("access_token"), answer.get("refresh_token", "")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise OAuthFailed("the authorization server gives no bearer token")
    if not _is_token(access) or not (refresh == "" or refresh is None or _is_token(refresh)):
        raise OAuthFailed("the authorization server gives a token that cannot be sent")
    lifetime = answer.get("expires_in")
    if isinstance(lifetime, str) and lifetime.isascii() and lifetime.isdecimal() and len(lifetime) < 12:
        lifetime = int(lifetime)
    is_known = isinstance(lifetime, int | float) and 0 <= lifetime <= _LONGEST_LIFE
    return GrantedTokens(
        access=str(access),
        refresh=str(refresh or ""),
        lifetime=int(lifetime) if is_known else None,  # type: ignore[arg-type]
    )


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TOKEN and _TOKEN.fullmatch(value) is not None


def _texts(document: Mapping[str, Any], name: str) -> Sequence[str]:
    values = document.get(name)
    return tuple(each for each in values if isinstance(each, str)) if isinstance(values, list) else ()


def _origin(url: str) -> str:
    """Return the beginning of an address up to its path; "" for another text."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}".lower()


def _covers(resource: str, url: str) -> bool:
    """Return True if *resource* is *url* or a part of its path, on the same host."""
    if _origin(resource) != _origin(url):
        return False
    path, own = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
    return path == own or own.startswith(f"{path}/")


def _check_address(url: str, what: str, *, is_private: bool) -> None:
    """Raise OAuthFailed unless *url* is an address that may be called or shown."""
    from gateway.net.public_http import FetchFailed, parse_public_url

    try:
        found = parse_public_url(url, ports=_ALL_PORTS)
    except FetchFailed as error:
        raise OAuthFailed(f"{what}: {error}") from None
    if found.scheme != "https" and not is_private:
        raise OAuthFailed(f"{what} is not at an https address")
    if urlsplit(url).fragment:
        raise OAuthFailed(f"{what} has an address with a # in it")
