"""MCP servers that the operator has pinned, and their tools.

A pin is a row of the store, the same for every gateway: the address of a server, and name, description and schema of
each tool as the operator saw them. Only tools that the operator allowed exist for the model, as `read` or `act`. The
text of a pinned tool is what the model reads; a server that describes a tool in another way has it refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from agent.llm.chat_model import ToolCall
from agent.mcp.client import NOBODY, CallLogin, ListedTool, McpClient, McpFailed, McpResult, ServerAddress
from agent.mcp.logins import KeyMissing, LoginNeeded, LoginServer, LoginUnavailable, PersonLogins, client_row
from agent.mcp.oauth import LoginConfig, OAuthFailed, choose_auth_method, parse_scopes
from agent.memory.storage.messages import TAINTED, is_tainted_line
from agent.tools.deferred_tools import USE_TOOL, inner_call
from agent.tools.tool import (
    ASK_BY_KIND,
    AskRule,
    CallFacts,
    JsonArguments,
    ResultContent,
    ResultPicture,
    Tool,
    ToolContext,
    ToolKind,
    ToolResult,
)
from gateway.errors import NothingHappened, ToolFailed, UserError
from gateway.events import ChatKind
from gateway.ports.channel import CACHED_NOTES

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState

log = structlog.get_logger(__name__)

STATE = "mcp/"  # the owner of the rows: no channel has a slash in its name
MOST_SERVERS = 16
LONGEST_NAME = 64  # characters of a tool's name, the most that every provider takes
_PREFIX = f"{CACHED_NOTES}server."
_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_WORD = re.compile(r"[^\W_]+")
_CONSTANTS = frozenset({"true", "false", "null"})
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_TIMEOUT = timedelta(seconds=60)
_LIST_WITHIN = 30.0  # seconds, of which the process that speaks the protocol takes a few to start
_CHECK_URL = "check the address, its path too, and that the server runs"
_LONGEST_PAUSE = 60.0  # seconds after a failed connection, doubled from one second on


class ToolUse(StrEnum):
    """The effect of a tool, as the operator says."""

    READ = "read"
    ACT = "act"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTool:
    """A tool as the operator saw it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    digest: str
    use: ToolUse | None = None  # None: it is not allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedServer:
    """A server and its tools, by name."""

    name: str
    url: str
    is_private: bool
    pinned_at: str  # ISO 8601
    tools: Mapping[str, PinnedTool] = field(default_factory=dict)
    login: LoginConfig | None = None  # how people sign in; None: nobody does

    @property
    def address(self) -> ServerAddress:
        """The address for the client."""
        return ServerAddress(name=self.name, url=self.url, is_private=self.is_private)

    def to_json(self) -> str:
        """Return the row's value."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> PinnedServer:
        """Return the server of a row."""
        facts = json.loads(text)
        tools = {
            name: PinnedTool(**{**each, "use": ToolUse(each["use"]) if each["use"] else None})
            for name, each in facts.pop("tools").items()
        }
        login = facts.pop("login", None)
        return cls(**facts, tools=tools, login=LoginConfig(**login) if login else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDifference:
    """A tool that the server describes in another way than its pin, or that only one of them has."""

    name: str
    what: str  # new, changed, removed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTrouble:
    """A fault of a server whose tools are allowed, and its remedy."""

    server: str
    text: str
    remedy: str


class _LoginWanted(UserError):
    """A server lists its tools only to those who have signed in."""


@dataclass(slots=True)
class _ServerOutage:
    reason: str
    failures: int
    until: float  # by the loop's clock


class McpServers:
    """The pinned servers of an installation, and their tools; served from memory."""

    def __init__(
        self, client: McpClient, state: SqlChannelState, logins: PersonLogins, now: Callable[[], datetime]
    ) -> None:
        self.logins = logins
        self._client = client
        self._state = state
        self._now = now
        self._rows: Mapping[str, str] | None = None
        self._parsed: Mapping[str, PinnedServer] = {}  # by the text of its row
        self._servers: Mapping[str, PinnedServer] = {}
        self._tools: Mapping[str, Tool] = {}
        self._outages: dict[str, _ServerOutage] = {}
        self._changed: set[tuple[str, str]] = set()  # server and digest of tools that were refused as changed
        self._closed: set[str] = set()  # servers that want a login and have none set up

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The allowed tools, by the name that the model uses; another mapping once a pin has changed anywhere."""
        self._refresh()
        return self._tools

    def _refresh(self) -> None:
        """Take over the rows as of the last transaction."""
        rows = self._state.cached()
        if rows is self._rows:
            return
        self._rows = rows
        texts = [text for name, text in sorted(rows.items()) if name.startswith(_PREFIX)]
        if texts == list(self._parsed):  # other notes have changed
            return
        self._parsed = {text: self._parsed.get(text) or PinnedServer.from_json(text) for text in texts}
        self._servers = {each.name: each for each in self._parsed.values()}
        tools = [
            self._tool(server, tool)
            for server in self._servers.values()
            for tool in sorted(server.tools.values(), key=lambda each: each.name)
            if tool.use is not None
        ]
        self._tools = {each.name: each for each in tools}

    # -- what the operator does ------------------------------------------------------------------

    @property
    def servers(self) -> Sequence[PinnedServer]:
        """The pinned servers, by name."""
        self._refresh()
        return tuple(self._servers.values())

    def server(self, name: str) -> PinnedServer:
        """Return the server called *name*. Raises UserError."""
        self._refresh()
        if (found := self._servers.get(name)) is None:
            known = ", ".join(self._servers)
            hint = f"pinned are: {known}" if known else "none is pinned; `parlour mcp add NAME URL` pins one"
            raise UserError(f"no MCP server is called {name}: {hint}")
        return found

    def is_changed(self, server: PinnedServer, tool: PinnedTool) -> bool:
        """Return True if a call has found that the server describes *tool* in another way now."""
        return (server.name, tool.digest) in self._changed

    def changed_tools(self) -> Mapping[str, str]:
        """Return the allowed tools that calls have found to be changed, by name, each with the digest of its pin."""
        return {
            tool_name(server.name, each.name): each.digest
            for server in self.servers
            for each in server.tools.values()
            if each.use is not None and self.is_changed(server, each)
        }

    def troubles(self) -> Sequence[ServerTrouble]:
        """Return the faults of servers that calls have found, until a later call succeeds or the operator acts."""
        found: list[ServerTrouble] = []
        for server in self.servers:
            changed = [each.name for each in server.tools.values() if each.use and self.is_changed(server, each)]
            if changed:
                text = f"{server.name} describes {', '.join(changed)} in another way than its pin, so they are off"
                found.append(ServerTrouble(server=server.name, text=text, remedy=f"`parlour mcp review {server.name}`"))
            if server.name in self._closed:
                text = f"{server.name} wants people to sign in, which is not set up"
                found.append(ServerTrouble(server=server.name, text=text, remedy=f"`parlour mcp login {server.name}`"))
            if (outage := self._outages.get(server.name)) is not None:
                text = f"{server.name} could not be reached: {outage.reason}"
                remedy = f"start it, or `parlour mcp remove {server.name}`"
                found.append(ServerTrouble(server=server.name, text=text, remedy=remedy))
        return found

    async def add(self, name: str, url: str, *, is_private: bool) -> tuple[PinnedServer, int]:
        """Pin the server at *url* with the tools that it has now, none of them allowed.

        Return it, and how many tools it has beyond the limits. One that lists its tools only to those who have signed
        in is pinned without any. Raises UserError and StoreUnavailable.
        """
        if not _NAME.fullmatch(name):
            raise UserError("a server's name has 1 to 24 small letters, digits and hyphens, a letter first")
        if any(each.name == name for each in self.servers):
            raise UserError(f"{name} is pinned already; `parlour mcp review {name}` compares it with its pin")
        if len(self._servers) >= MOST_SERVERS:
            raise UserError(f"at most {MOST_SERVERS} servers are pinned")
        _check_address(url)
        server = PinnedServer(
            name=name, url=url, is_private=is_private, pinned_at=self._now().isoformat(timespec="seconds")
        )
        try:
            listed, left_out = await self._list(server, NOBODY)
        except _LoginWanted:
            listed, left_out = (), 0
        server = replace(server, tools={each.name: _pin(each) for each in listed})
        if not await self._state.replace(_PREFIX + name, None, server.to_json()):
            raise UserError(f"{name} was pinned by somebody else just now")
        return server, left_out

    async def allow(self, name: str, tools: Sequence[str], use: ToolUse | None) -> PinnedServer:
        """Let the model use *tools* of the server *name*, or with None no longer. Raises UserError."""

        def change(server: PinnedServer) -> PinnedServer:
            if unknown := [each for each in tools if each not in server.tools]:
                raise UserError(f"{name} has no tool called {unknown[0]}; it has: {', '.join(server.tools) or 'none'}")
            for each in tools if use is not None else ():
                if self.is_changed(server, server.tools[each]):
                    raise UserError(f"{name} describes {each} differently now; run `parlour mcp review {name}` first")
            changed = {each: replace(server.tools[each], use=use) for each in tools}
            return replace(server, tools={**server.tools, **changed})

        return await self._change(name, change)

    async def read_login(
        self, name: str, *, client_id: str = "", has_secret: bool = False, issuer: str = "", scopes: str = ""
    ) -> LoginConfig:
        """Return the login of the server *name*, as its metadata and those of its *issuer* describe it.

        Nothing is stored. Without *client_id*, the server has to know clients by the address of their metadata. Raises
        UserError.
        """
        server, logins = self.server(name), self.logins
        if not server.is_private and urlsplit(server.url).scheme != "https":
            raise UserError(f"{server.url} is not an https address: everybody on the way could read people's tokens")
        try:
            found = await logins.client.read_metadata(server.address, issuer)
            if not client_id and (
                has_secret or not found.takes_documents or not logins.document(name).startswith("https://")
            ):
                raise UserError(
                    f"{found.issuer} has to know this gateway: register an application there with the redirect address"
                    f" {logins.redirect(name)}, and run `parlour mcp login {name} --client-id ID`"
                    + ("" if found.takes_documents is False else "; or set web.public_url to an https address")
                )
            return LoginConfig(
                resource=found.resource,
                issuer=found.issuer,
                authorize=found.authorize,
                token=found.token,
                revoke=found.revoke,
                client_id=client_id or logins.document(name),
                auth_method=choose_auth_method(found, has_secret=has_secret),
                scopes=parse_scopes(scopes) or found.scopes,
                sends_issuer=found.sends_issuer,
                is_private=found.is_private,
            )
        except OAuthFailed as error:
            hint = "; add --issuer if it is your own" if server.is_private and not issuer else ""
            raise UserError(f"{name}: {error}{hint}") from None

    async def set_login(self, name: str, config: LoginConfig, *, secret: str = "") -> PinnedServer:
        """Let people sign in to the server *name* as *config* says. Raises UserError and StoreUnavailable."""
        vault = self.logins.vault
        await vault.make_key()
        sealed = replace(config, secret=vault.seal(secret, client_row(name)) if secret else "")
        self._closed.discard(name)
        return await self._change(name, lambda server: replace(server, login=sealed))

    async def unset_login(self, name: str) -> PinnedServer:
        """End signing in to the server *name*, and remove the logins there. Raises UserError."""
        login = self.login_server(name)
        server = await self._change(name, lambda server: replace(server, login=None))
        await self.logins.forget(server=name, login=login)
        return server

    async def reset_logins(self) -> None:
        """Remove all logins and client secrets, and forget the key that sealed them."""
        await self.logins.forget()
        for each in self.servers:
            if each.login is not None and each.login.secret:  # it has to be given again
                await self._change(each.name, lambda server: replace(server, login=None))
        await self.logins.vault.forget_key()

    @property
    def login_names(self) -> Sequence[str]:
        """The names of the servers that people sign in to."""
        return [each.name for each in self.servers if each.login is not None]

    def login_server(self, name: str) -> LoginServer | None:
        """Return the server *name* as people sign in to it; None if it has no logins."""
        self._refresh()
        server = self._servers.get(name)
        if server is None or server.login is None:
            return None
        return LoginServer(name=name, url=server.url, config=server.login)

    async def review(self, name: str, *, accept: bool, accounts: Sequence[str] = ()) -> Sequence[ToolDifference]:
        """Compare a server with its pin; with *accept*, pin what it has now, and allow none that is new or changed.

        Where people sign in, the login of the first of *accounts* that has one is used. Raises UserError and
        StoreUnavailable.
        """
        server = self.server(name)
        try:
            listed, _ = await self._list(server, await self._any_login(server, accounts))
        except _LoginWanted as error:
            first = f"`parlour mcp login {name}`; then " if server.login is None else ""
            raise UserError(f"{error}: {first}an owner sends `/login {name}` to the bot, then compare again") from None
        found = {each.name: _pin(each) for each in listed}
        differences = [
            *(ToolDifference(name=each, what="removed") for each in server.tools if each not in found),
            *(ToolDifference(name=each, what="new") for each in found if each not in server.tools),
            *(
                ToolDifference(name=each.name, what="changed")
                for each in found.values()
                if each.name in server.tools and server.tools[each.name].digest != each.digest
            ),
        ]
        if accept:
            different = {each.name for each in differences}

            def change(server: PinnedServer) -> PinnedServer:
                kept = {each: tool for each, tool in server.tools.items() if each in found and each not in different}
                return replace(server, tools={**found, **kept})

            await self._change(name, change)
            self._changed = {each for each in self._changed if each[0] != name}
        return differences

    async def remove(self, name: str) -> int:
        """Forget a server and its tools; return the number of logins that it did not revoke. Raises UserError."""
        self.server(name)
        login = self.login_server(name)
        await self._state.save(_PREFIX + name, None)
        unrevoked = await self.logins.forget(server=name, login=login, waits=True)
        self._outages.pop(name, None)
        self._closed.discard(name)
        return unrevoked

    async def _change(self, name: str, change: Callable[[PinnedServer], PinnedServer]) -> PinnedServer:
        """Change a row as it is now, also beside another change. Raises UserError."""
        while True:
            before = await self._state.load(_PREFIX + name)
            if before is None:
                raise UserError(f"no MCP server is called {name}")
            server = change(PinnedServer.from_json(before))
            if await self._state.replace(_PREFIX + name, before, server.to_json()):
                return server

    async def _any_login(self, server: PinnedServer, accounts: Sequence[str]) -> CallLogin:
        for each in accounts if server.login is not None else ():
            with suppress(LoginNeeded, LoginUnavailable):
                return await self.logins.find(server.name, each)
        return NOBODY

    async def _list(self, server: PinnedServer, login: CallLogin) -> tuple[Sequence[ListedTool], int]:
        """Return the tools of a server. Raises UserError."""
        try:
            async with asyncio.timeout(_LIST_WITHIN):
                return await self._client.list_tools(server.address, login)
        except TimeoutError:
            raise UserError(
                f"{server.name} ({server.url}) did not list its tools in {_LIST_WITHIN:.0f} s; {_CHECK_URL}"
            ) from None
        except McpFailed as error:
            if error.kind == "login":
                raise _LoginWanted(f"{server.name} shows its tools only to those who have signed in") from None
            is_private = "public internet" in str(error)
            hint = "add --private if the server is your own" if is_private else _CHECK_URL
            raise UserError(f"{server.name} ({server.url}): {error}; {hint}") from None

    # -- what the model calls --------------------------------------------------------------------

    def _tool(self, server: PinnedServer, pinned: PinnedTool) -> Tool:
        name = tool_name(server.name, pinned.name)
        is_read = pinned.use is ToolUse.READ
        kind = ToolKind.WEB if is_read else ToolKind.ACT
        network = "private" if server.is_private else "public"

        async def run(context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
            return await self._call(server, pinned, context, arguments)

        return Tool(
            name=name,
            description=pinned.description,
            run=run,
            arguments=JsonArguments(pinned.schema),
            schema={
                "type": "function",
                # Not for the model: what a person allows is a tool at this address.
                "server": " ".join([server.url, network, *([server.login.issuer] if server.login else [])]),
                "function": {"description": pinned.description, "name": name, "parameters": pinned.schema},
            },
            kind=kind,
            repeatable=is_read,
            brings=ResultContent.WORDS,
            ask=AskRule.TAINTED if is_read else ASK_BY_KIND[kind],
            subject=lambda arguments: f"{server.name}: {pinned.name}",  # noqa: ARG005 - the whole tool
            review=_ReadReview(server.name, is_personal=server.login is not None) if is_read else None,
            is_personal=server.login is not None,
            who=None,
            where=None,
            is_for_untyped=None,
            timeout=_TIMEOUT,
            page=12_000,
            gives=(),
        )

    async def _call(
        self, server: PinnedServer, pinned: PinnedTool, context: ToolContext, arguments: Mapping[str, Any]
    ) -> ToolResult:
        loop = asyncio.get_running_loop()
        outage = self._outages.get(server.name)
        if outage is not None and (left := outage.until - loop.time()) > 0:
            raise NothingHappened(f"{server.name} is down; next try in {left:.0f} s")
        login = await self._login(server, context.account.name)
        for is_last in (server.login is None, True):
            try:
                result = await self._client.call(
                    server.address,
                    pinned.name,
                    pinned.digest,
                    arguments,
                    key=context.call_key,
                    may_repeat=pinned.use is ToolUse.READ,
                    login=login,
                    progress=context.progress,
                )
            except McpFailed as error:
                if is_last or error.kind != "login" or error.is_sent:
                    raise self._failed(server, pinned, error) from None
                login = await self._login(server, context.account.name, except_token=login.token)
            else:
                break
        self._outages.pop(server.name, None)
        return _tool_result(server.name, result)

    async def _login(self, server: PinnedServer, account: str, *, except_token: str = "") -> CallLogin:
        """Return the login for a call of the person with *account*. Raises NothingHappened."""
        if server.login is None:
            return NOBODY
        try:
            return await self.logins.find(server.name, account, except_token=except_token)
        except LoginNeeded as error:
            raise NothingHappened(
                f"{error}. Ask them to send `/login {server.name}` to you; nobody else's login may be used"
            ) from None
        except LoginUnavailable as error:
            raise NothingHappened(f"{error}; they need not sign in again. Try later") from None
        except KeyMissing:
            log.exception("login.key_missing")
            raise NothingHappened(f"logins at {server.name} cannot be read here; an owner has to look") from None

    def _failed(self, server: PinnedServer, pinned: PinnedTool, error: McpFailed) -> ToolFailed:
        """Count a failed call and return the error for the model."""
        text = f"{server.name}: {error}"
        if error.kind == "changed":
            self._changed.add((server.name, pinned.digest))
            log.warning("mcp.tool_changed", server=server.name, mend=f"parlour mcp review {server.name}")
            text = f"{server.name} has changed this tool since it was approved, so it is off until an owner looks at it"
        elif error.kind == "login":
            if server.login is None:
                self._closed.add(server.name)
                log.warning("mcp.login_not_set_up", server=server.name, mend=f"parlour mcp login {server.name}")
                text = f"{server.name} wants people to sign in, which an owner has to set up first"
            else:
                text = f"{server.name} does not accept the login of this person; they may `/login {server.name}` again"
        elif error.kind == "down":
            failures = self._outages[server.name].failures + 1 if server.name in self._outages else 1
            pause = min(2.0 ** (failures - 1), _LONGEST_PAUSE)
            until = asyncio.get_running_loop().time() + pause
            self._outages[server.name] = _ServerOutage(str(error), failures, until)
            log.warning("mcp.server_down", server=server.name, reason=str(error), seconds=pause)
            text = f"{server.name} is down: {error}; next try in {pause:.0f} s"
        return ToolFailed(text) if error.is_sent else NothingHappened(text)


class _ReadReview:
    """Lets a tool that reads run without a question, unless text of others could have chosen what it is asked.

    Such text could make the model carry what a person wrote to the server, in the words that it looks for. So in a
    tainted conversation a call runs at once only if all text in the conversation is the same server's, and each word
    of its arguments occurs in it or in what people wrote.
    """

    def __init__(self, server: str, *, is_personal: bool) -> None:
        self._prefix = tool_name(server, "")
        self._is_personal = is_personal

    def __call__(self, arguments: Mapping[str, Any], facts: CallFacts) -> AskRule:
        if self._is_personal and facts.chat_kind is not ChatKind.DIRECT:
            return AskRule.ALWAYS  # everybody there sees what is the person's
        if not facts.is_tainted:
            return AskRule.NEVER
        calls: dict[str, ToolCall] = {}  # by id: the latest, since each turn counts anew
        known: set[str] = set()
        has_own = False
        for line in facts.lines():
            for each in line.get("tool_calls") or ():
                function = each["function"]
                calls[str(each["id"])] = ToolCall(str(each["id"]), str(function["name"]), str(function["arguments"]))
            is_own = self._is_own(calls.get(str(line.get("tool_call_id", ""))))
            if is_own or (line.get("role") == "user" and not is_tainted_line(line)):
                known |= _words(str(line.get("content", "")))
            if is_tainted_line(line):
                has_own = has_own or is_own
                # Without one before, an answer was made from text that is further back than these lines.
                if not is_own and not (line.get(TAINTED) and has_own):
                    return AskRule.TAINTED
        values = arguments["arguments"].values()  # the names are the tool's
        asked = {word for value in values for word in _words(json.dumps(value, ensure_ascii=False))}
        return AskRule.NEVER if asked <= known | _CONSTANTS else AskRule.TAINTED

    def _is_own(self, call: ToolCall | None) -> bool:
        return call is not None and call.name == USE_TOOL and inner_call(call).name.startswith(self._prefix)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def tool_name(server: str, tool: str) -> str:
    """Return the name by which a model calls *tool* of *server*: no other tool has it."""
    plain = _FOREIGN.sub("_", tool)
    name = f"mcp_{server}_{plain}"
    if plain == tool and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(tool.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


def _pin(tool: ListedTool) -> PinnedTool:
    return PinnedTool(name=tool.name, description=tool.description, schema=tool.schema, digest=tool.digest)


def _check_address(url: str) -> None:
    """Raise UserError unless *url* is the address of a server."""
    try:
        found = urlsplit(url)
        is_one = found.scheme in {"http", "https"} and found.hostname and found.port != 0
    except ValueError:
        is_one = False
    if not is_one or found.username is not None or found.fragment or not url.isprintable() or " " in url:
        raise UserError("the address of a server begins with http:// or https:// and has no user name in it")


def _tool_result(server: str, result: McpResult) -> ToolResult:
    texts = [*result.texts, *(["[the server's result is longer; this is its beginning]"] if result.is_cut else ())]
    if (further := len(result.pictures) - 1) > 0:
        texts.append(f"[{further} further {'picture is' if further == 1 else 'pictures are'} not shown]")
    return ToolResult(
        text="\n".join(texts) or "(no text)",
        picture=ResultPicture(server, result.pictures[0]) if result.pictures else None,
        is_error=result.is_error,
    )
