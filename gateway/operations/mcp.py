"""Operations on MCP servers: pin one, allow its tools, compare it with its pin, forget it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from gateway.control import Line
from gateway.control.registry import AuditRule, Call, CommandConfirmation, argument, operation, option, plain, rows
from gateway.errors import UserError
from gateway.events import PlatformAccount, Role
from gateway.installation import operator_command
from gateway.operations.group import OperationGroup

if TYPE_CHECKING:
    from agent.mcp.oauth import LoginConfig
    from agent.mcp.servers import PinnedServer, PinnedTool

Name = Annotated[str, argument("The server's name.")]
_UNUSED = "off"


def _server_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    """Yield a row for each tool of a server, with the text that the model would read, and then what to do next."""
    for line in lines:
        if "tool" in line:
            yield f"{line['use']:7}  {line['tool']}"
            yield from (f"           {row}" for row in line["shown"].splitlines())
        else:
            yield from line["notes"]


def _list_row(line: Line) -> str:
    row = f"{line['server']}  {line['url']}  {line['allowed']} of {line['tools']} tools allowed"
    return f"{row}  people sign in at {line['issuer']}" if line["issuer"] else row


def _removed_row(line: Line) -> str:
    count = line["unrevoked"]
    rest = f"; it did not confirm that {count} of its logins are revoked, so check there" if count else ""
    return f"{line['server']} is forgotten{rest}"


def _login_row(line: Line) -> str:
    state = "has to sign in again" if line["is_over"] else "signed in"
    return f"{line['server']}  {line['account']}  {state} {line['at'][:10]}"


def _login_line(config: LoginConfig) -> dict[str, Any]:
    """Return the addresses, client and scopes of a login, and a digest of the whole configuration."""
    whole = json.dumps(asdict(config), sort_keys=True)
    shown = ("resource", "authorize", "issuer", "token", "client_id", "scopes")
    line = {name: plain(getattr(config, name)) for name in shown}
    return {**line, "digest": hashlib.sha256(whole.encode()).hexdigest()}


def _confirm_login(call: Call, arguments: Line) -> CommandConfirmation:
    name = arguments["name"]
    if arguments.get("off"):
        return CommandConfirmation(f"Nobody signs in to {name} any more, and all logins there are removed. Continue?")
    given = {each: arguments[each] for each in ("name", "client_id", "issuer", "scopes")}
    (line,) = call("mcp preview-login", {**given, "has_secret": bool(arguments["client_secret"])})
    scopes = " ".join(line["scopes"]) or "what it gives without being asked for scopes"
    text = (
        f"{name}: {line['resource']}\n"
        f"  people sign in at   {line['authorize']}\n"
        f"  issuer              {line['issuer']}\n"
        f"  tokens come from    {line['token']}\n"
        f"  this gateway is     {line['client_id']}\n"
        f"  people allow        {scopes}"
    )
    confirmed = {"confirmed": line["digest"]}
    return CommandConfirmation(f"Let people sign in to {name} like this?", text, confirmed)


class McpOperations(OperationGroup):
    """The operations `mcp add|list|show|allow|review|remove|login|preview-login|logins|logout|reset-logins`."""

    @operation(
        "mcp list",
        Role.OWNER,
        show=rows(
            _list_row,
            empty="no MCP server is pinned; `parlour mcp add NAME URL` pins one",
        ),
    )
    async def list_servers(self) -> AsyncIterator[Line]:
        """List the MCP servers."""
        for each in self._app.mcp.servers:
            allowed = sum(tool.use is not None for tool in each.tools.values())
            yield {
                "server": each.name,
                "url": each.url,
                "is_private": each.is_private,
                "pinned_at": each.pinned_at,
                "tools": len(each.tools),
                "allowed": allowed,
                "issuer": each.login.issuer if each.login is not None else "",
            }

    @operation("mcp show", Role.OWNER, show=_server_rows)
    async def show(self, name: Name) -> AsyncIterator[Line]:
        """Show the tools of a server as they were pinned, and how each may be used."""
        for line in self._tool_lines(self._app.mcp.server(name)):
            yield line

    @operation("mcp add", Role.OWNER, {"name", "url"}, audit=AuditRule.CALL, subject="name", show=_server_rows)
    async def add(
        self,
        name: Annotated[str, argument("Small letters, digits and hyphens; tools are called mcp_NAME_TOOL.")],
        url: Annotated[str, argument("The address of its Streamable HTTP endpoint, such as https://example.com/mcp.")],
        private: Annotated[bool, option("It is your own: its address may be one that is not public.")] = False,
    ) -> AsyncIterator[Line]:
        """Pin an MCP server: show its tools, none of which the model may use before `mcp allow`."""
        server, left_out = await self._app.mcp.add(name, url, is_private=private)
        for line in self._tool_lines(server):
            yield line
        beyond = (
            f"{left_out} further tools are left out: a server has at most 64, and 256 KB of texts; those that run"
            " only as tasks of the protocol cannot be called"
        )
        allow = operator_command(f"mcp allow {name} TOOL[,TOOL…]")
        if not server.tools:
            yield {
                "notes": [
                    f"{name} is pinned. It shows its tools only to people who have signed in:",
                    f"  {operator_command(f'mcp login {name}')}   says how they do",
                    f"  then an owner sends `/login {name}` to the bot",
                    f"  {operator_command(f'mcp review {name} --accept')}   pins the tools",
                ]
            }
            return
        yield {
            "notes": [
                *([beyond] if left_out else []),
                f"{name} is pinned. Read the texts above: the model will. Then let it use what you trust:",
                f"  {allow} --as read   looks things up; runs without a question",
                f"  {allow} --as act    changes something; the person is asked",
            ]
        }

    @operation("mcp allow", Role.OWNER, audit=AuditRule.CALL, subject="name", show=_server_rows)
    async def allow(
        self,
        name: Name,
        tools: Annotated[str, argument("The tools, with commas between them, or `all`.", "TOOLS")],
        as_: Annotated[str, option("read, act, or off.")] = "act",
    ) -> AsyncIterator[Line]:
        """Let the model use tools of a server: those that `read` run without a question, those that `act` ask."""
        from agent.mcp.servers import ToolUse

        uses = {str(ToolUse.READ): ToolUse.READ, str(ToolUse.ACT): ToolUse.ACT, _UNUSED: None}
        if as_ not in uses:
            raise UserError(f"a tool is allowed as read or act, or off, not as {as_!r}")
        server = self._app.mcp.server(name)
        chosen = list(server.tools) if tools == "all" else [each.strip() for each in tools.split(",") if each.strip()]
        server = await self._app.mcp.allow(name, chosen, uses[as_])
        for each in chosen:
            yield self._tool_line(server, server.tools[each])

    @operation(
        "mcp review",
        Role.OWNER,
        audit=AuditRule.CALL,
        subject="name",
        show=rows(lambda line: f"{line['what']:8} {line['tool']}", empty="nothing has changed since it was pinned"),
    )
    async def review(
        self,
        name: Name,
        accept: Annotated[bool, option("Pin what it has now; new and changed tools are off until allowed.")] = False,
        person: Annotated[str, option("Whose login lists the tools, such as telegram:42; an owner's by default.")] = "",
    ) -> AsyncIterator[Line]:
        """Compare a server with its pin, and show the tools that are new, changed or gone."""
        from gateway.app.context import LOCAL_ACCOUNTS

        roster = self._app.roster
        accounts = [*LOCAL_ACCOUNTS, *(roster.account(each.channel, each.who) for each in roster.owners())]
        if person:
            accounts = [PlatformAccount.from_input(person, has_teams=self._app.platforms.has_teams)]
        names = [each.name for each in accounts]
        for each in await self._app.mcp.review(name, accept=accept, accounts=names):
            yield {"tool": each.name, "what": each.what}

    @operation(
        "mcp remove",
        Role.OWNER,
        audit=AuditRule.CALL,
        subject="name",
        show=rows(_removed_row),
    )
    async def remove(self, name: Name) -> AsyncIterator[Line]:
        """Forget a server; its tools are gone from the next message on."""
        yield {"server": name, "unrevoked": await self._app.mcp.remove(name)}

    @operation("mcp preview-login")
    async def preview_login(
        self, name: str, client_id: str = "", has_secret: bool = False, issuer: str = "", scopes: str = ""
    ) -> AsyncIterator[Line]:
        """Read the login of a server from its metadata; nothing is stored. `digest` is that of all of it."""
        given = {"client_id": client_id, "issuer": issuer, "scopes": scopes}
        yield _login_line(await self._app.mcp.read_login(name, has_secret=has_secret, **given))

    @operation(
        "mcp login",
        Role.OWNER,
        {"name", "client_id", "client_secret", "issuer", "scopes", "off"},
        audit=AuditRule.CALL,
        subject="name",
        confirm=_confirm_login,
        show=rows(
            lambda line: (
                f"{line['server']}: nobody signs in any more"
                if not line["issuer"]
                else f"{line['server']}: people sign in at {line['issuer']}, with `/login {line['server']}` in a chat;"
                f" they allow: {' '.join(line['scopes']) or 'what it gives without being asked for scopes'}"
            )
        ),
    )
    async def login(
        self,
        name: Name,
        client_id: Annotated[str, option("The id of this gateway, where it is registered.")] = "",
        client_secret: Annotated[str, option("A file with its secret; - is standard input.", is_file=True)] = "",
        issuer: Annotated[str, option("The authorization server, if the service names none, or it is your own.")] = "",
        scopes: Annotated[str, option("What people allow, in place of what the service names.")] = "",
        off: Annotated[bool, option("Nobody signs in any more; all logins there are removed.")] = False,
        confirmed: str = "",
    ) -> AsyncIterator[Line]:
        """Let people sign in to a server with their own accounts: each call uses the login of who wrote.

        *confirmed* is the digest of what a question has shown. Raises UserError if the server says something else now.
        """
        mcp = self._app.mcp
        if off:
            server = await mcp.unset_login(name)
        else:
            config = await mcp.read_login(
                name, client_id=client_id, has_secret=bool(client_secret), issuer=issuer, scopes=scopes
            )
            if confirmed and _login_line(config)["digest"] != confirmed:
                raise UserError(f"{name} describes its login in another way than a moment ago; nothing is pinned")
            server = await mcp.set_login(name, config, secret=client_secret)
        found = server.login
        yield {
            "server": name,
            "issuer": found.issuer if found is not None else "",
            "client_id": found.client_id if found is not None else "",
            "scopes": list(found.scopes) if found is not None else [],
        }

    @operation("mcp logins", Role.OWNER, show=rows(_login_row, empty="nobody has signed in to an MCP server"))
    async def list_logins(self) -> AsyncIterator[Line]:
        """List who has signed in to MCP servers. No token is in a line."""
        for each in await self._app.logins.summaries():
            account = PlatformAccount.from_name(each.account)
            yield {
                "server": each.server,
                "account": account.label,
                "at": each.at.isoformat(),
                "is_over": each.is_over,
            }

    @operation(
        "mcp logout",
        Role.OWNER,
        audit=AuditRule.CALL,
        subject="person",
        show=rows(lambda line: f"{line['account']} is signed out of {line['server']}"),
    )
    async def logout(
        self,
        name: Name,
        person: Annotated[str, argument("An account of the person, such as telegram:42.")],
    ) -> AsyncIterator[Line]:
        """End a person's login at a server."""
        account = PlatformAccount.from_input(person, has_teams=self._app.platforms.has_teams)
        if not await self._app.logins.sign_out(name, account.name):
            raise UserError(f"{person} has not signed in to {name}; `parlour mcp logins` lists who has")
        yield {"server": name, "account": account.label}

    @operation(
        "mcp reset-logins",
        show=rows(lambda line: f"{line['removed']} logins are removed: everybody signs in again"),
        confirm=lambda *_: CommandConfirmation("Remove all logins at MCP servers?"),
    )
    async def reset_logins(self) -> AsyncIterator[Line]:
        """Remove all logins and client secrets, as after the loss of their key; the next `mcp login` makes another."""
        removed = len(await self._app.logins.summaries())
        await self._app.mcp.reset_logins()
        yield {"removed": removed}

    def _tool_lines(self, server: PinnedServer) -> Iterable[dict[str, Any]]:
        return [self._tool_line(server, each) for each in server.tools.values()]

    def _tool_line(self, server: PinnedServer, tool: PinnedTool) -> dict[str, Any]:
        from gateway.text.message_text import show_escapes  # which other commands do without

        use = _UNUSED if tool.use is None else str(tool.use)
        return {
            "tool": tool.name,
            "use": "changed" if self._app.mcp.is_changed(server, tool) else use,
            "shown": f"{show_escapes(tool.description)}\n{show_escapes(json.dumps(tool.schema, ensure_ascii=False))}",
        }
