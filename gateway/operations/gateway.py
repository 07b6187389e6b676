"""Operations on the gateway: its status, sessions, quarantine, backup and logins to the page."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gateway.control import ControlConnection, Line
from gateway.control.registry import AuditRule, argument, operation, option, plain, rows
from gateway.errors import FileUnavailable, UserError
from gateway.events import Role, short_turn_id
from gateway.i18n.formats import format_usage
from gateway.installation import program_version
from gateway.operations.group import OperationGroup, parse_chat
from gateway.ports.journal import Job
from gateway.settings.channel_blocks import PAGE
from gateway.text.message_text import strip_control_characters

if TYPE_CHECKING:
    from channels.api.adapter import ApiChannel
    from channels.api.keys import ApiKey
    from channels.web.adapter import WebChannel

_MOST_LINES = 1_000
_LONGEST_INVITATION = 30  # days
_FILE_PIECE = 512 * 1024  # bytes of a file in one line
NO_GATEWAY = "no gateway is running; start one with `parlour run`"


def _not_in_quarantine(name: str) -> UserError:
    return UserError(f"there is no quarantined event {name!r}; `parlour quarantine list` lists them")


Key = Annotated[str, argument("channel:chat_id")]
QuarantinedName = Annotated[str, argument("Its name in `parlour quarantine list`.")]


# -- rows of a terminal ------------------------------------------------------------------------------


def status_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    """Yield the state of the gateway, then the findings in it, then its work and what was spent today."""
    (line,) = lines
    channels = line.get("channels", {})
    states = {True: "connected", False: "degraded", None: "not connected yet"}
    facts = {
        **line,
        "channels": ", ".join(f"{name} {states[state]}" for name, state in channels.items()) or "none open",
    }
    jobs, budget, today = facts.pop("jobs", []), facts.pop("background_budget", None), facts.pop("today", [])
    for name, value in facts.items():
        if name != "search" and not isinstance(value, list | dict):  # these are in the findings
            yield f"{name:16} {value}"
    for finding in line["findings"]:
        yield f"{finding['name']:16} {strip_control_characters(finding['text'])}"
    for job in jobs:
        if any(job[name] for name in ("running", "waiting", "later", "done", "failures", "last_run")):
            yield f"{'job ' + job['kind']:16} {_job_row(job)}"
    if today:
        sums = "{calls:,} model calls, {tokens:,} tokens, {cached_percent}% of input tokens cached, cost {cost}"
        yield f"{'today':16} {sums.format(**format_usage(today))}"
    if budget and budget["limit"]:
        spent = ", spent: pending jobs continue tomorrow" if budget["is_spent"] else ""
        yield f"{'background':16} {budget['spent']} of {budget['limit']} tokens today{spent}"


def _job_row(job: Mapping[str, Any]) -> str:
    """Return the counts of one kind of jobs; done and failed ones are counted since the start of the gateway."""
    oldest = f" (the oldest for {job['lag_seconds']:.0f} s)" if job["waiting"] else ""
    last = f", last run {job['last_run'][:19]}Z" if job["last_run"] else ""
    return (
        f"{job['running']} running, {job['waiting']} waiting{oldest}, {job['later']} later,"
        f" {job['done']} done, {job['failures']} failed{last}"
    )


def _message_row(line: Line) -> str:
    who = line.get("name") or line["role"]
    waiting = " (waiting)" if line.get("state") == "waiting" else ""
    return f"{line['at'][:19]}Z  {who}{waiting}: {line['text']}"


def _sent_row(line: Line) -> str:
    when = "" if line["running"] else "; it will be answered when a gateway runs"
    return f"accepted as {line['reference']}{when}"


def _backup_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    (line,) = lines
    people = "1 person" if line["people"] == 1 else f"{line['people']:,} people"
    what = f"{line['turns']:,} turns, memories of {people}, {line['files']:,} files"
    yield f"{line['file']}: {what}, {line['size']:,} bytes"
    yield from (f"not included: {left_out}" for left_out in line["left_out"])


def _code_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    return filter(None, (lines[0]["code"], lines[0]["link"]))


def _user_row(line: Line) -> str:
    seen = "now" if line["is_open"] else _minute(line["seen_at"]) or "never"
    logins = f"{_browsers(line['browsers'])}, until {_minute(line['until'])}" if line["browsers"] else "not logged in"
    invited = f", invited until {_minute(line['invited_until'])}" if line["invited_until"] else ""
    return f"{line['who']:24} {line['role']:8} {logins}, seen {seen}{invited}"


def _minute(at: str) -> str:
    return f"{at[:16].replace('T', ' ')} UTC" if at else ""


def _browsers(count: int) -> str:
    return "1 browser" if count == 1 else f"{count} browsers"


def _key_row(line: Line) -> str:
    return f"{line['id']:10} {line['who']:24} since {str(line['created_at'])[:16].replace('T', ' ')} UTC"


# -- operations --------------------------------------------------------------------------------------


class GatewayOperations(OperationGroup):
    """The operations over an open gateway: its status, sessions, quarantine, backup and logins to the page."""

    @operation("status", Role.OWNER, show=status_rows)
    async def status(self) -> AsyncIterator[Line]:
        """Show the state of the gateway: channels, queues, jobs, alerts, usage.

        The findings in it are those of `parlour doctor` and of the console. Each part that the store has a share in is
        read by itself: one that does not answer in time is a finding, and leaves the others known.
        """
        from gateway.health.gateway_checks import read_status, status_findings

        app = self._app
        line = plain(
            {
                "version": program_version(),
                "home": str(app.home.path),
                "gateway": "running" if app.channels else "not running",
                "since": self._app.since,
                **({"page": app.web.url} if app.channels else {}),
                **await read_status(app),
            }
        )
        yield {**line, "findings": [each.to_line() for each in status_findings(line)]}

    @operation(
        "sessions list",
        show=rows(lambda line: f"{line['updated_at'][:19]}Z  {line['messages']:>7}  {line['key']}"),
    )
    async def list_sessions(self) -> AsyncIterator[Line]:
        """List every session, the most recently used first."""
        for session in await self._app.memory.sessions.all():
            yield plain(session)

    @operation("sessions show", show=rows(_message_row))
    async def show_session(
        self,
        key: Key,
        limit: Annotated[int, option("How many of the newest messages to show.", least=1, most=_MOST_LINES)] = 50,
    ) -> AsyncIterator[Line]:
        """Show the newest messages of a session."""
        for line in await self._app.memory.sessions.displayed_messages(parse_chat(key), limit=min(limit, _MOST_LINES)):
            yield plain(line)

    @operation("send", makes_home=True, show=rows(_sent_row))
    async def send(self, key: Key, text: Annotated[str, argument("The message.")]) -> AsyncIterator[Line]:
        """Send a text to a session as a job; the reply goes to that chat."""
        if not text.strip():
            raise UserError("the text to send is missing; give one")
        turn = await self._app.submit(parse_chat(key), text)
        yield {"turn": turn, "reference": short_turn_id(turn), "running": bool(self._app.channels)}

    @operation("chat file")
    async def read_file(self, blob: str) -> AsyncIterator[Line]:
        """Yield the bytes of an attachment in Base64, a piece in a line: the terminal saves the files that it gets."""
        try:
            async for piece in self._app.blobs.stream(blob):
                for start in range(0, len(piece), _FILE_PIECE):
                    yield {"data": base64.b64encode(piece[start : start + _FILE_PIECE]).decode("ascii")}
        except FileUnavailable as error:
            raise UserError(f"the file cannot be read: {error}") from error

    @operation("backup", show=_backup_rows)
    async def backup(
        self, file: Annotated[Path, argument("The .tar.gz file to write; it must not exist yet.")]
    ) -> AsyncIterator[Line]:
        """Write one archive of everything except secrets, while the gateway runs."""
        result = await self._app.backup(file)
        yield {
            "file": str(result.target),
            "files": result.files,
            "size": result.size,
            "turns": result.turns,
            "people": result.people,
            "left_out": list(result.left_out),
        }

    @operation(
        "prune",
        show=rows(
            lambda line: (
                f"{line['rows']} rows, {line['events']} quarantined events and {line['files']} expired files removed"
            )
        ),
    )
    async def prune(self) -> AsyncIterator[Line]:
        """Remove expired rows from the journal.

        Quarantined events, deleted files of workspaces and results of tools go with them.
        """
        yield {
            "rows": await self._app.store.prune(),
            "events": await self._app.quarantine.prune(),
            "files": await self._app.memory.workspaces.expire_trash() + await self._app.pages.prune(),
        }

    @operation(
        "quarantine list",
        show=rows(
            lambda line: f"{line['at'][:19]}Z  {line['name']}  {line['reason']}  (in {line['file']})",
            empty="the quarantine is empty",
        ),
    )
    async def list_quarantine(self) -> AsyncIterator[Line]:
        """List quarantined events, the newest first, each with its file."""
        from gateway.quarantine import list_events

        for event in await asyncio.to_thread(list_events, self._app.home.quarantine):
            yield {"name": event.file.stem, **plain(event)}

    @operation(
        "quarantine drop",
        show=rows(lambda line: f"{line['name']} is removed; if its platform sends it again, it is handled"),
    )
    async def drop_from_quarantine(self, name: QuarantinedName) -> AsyncIterator[Line]:
        """Remove one event, so that it is handled when its platform delivers it again."""
        if not await self._app.quarantine.drop(name):
            raise _not_in_quarantine(name)
        yield {"name": name}

    @operation(
        "quarantine replay", show=rows(lambda line: f"{line['name']} was handled and is no longer in quarantine")
    )
    async def replay_from_quarantine(self, name: QuarantinedName) -> AsyncIterator[Line]:
        """Have the running gateway handle one event again, as if it had just arrived."""
        if not self._app.channels:
            raise self._absent("no channel is connected")
        try:
            is_known = await self._app.quarantine_retrier.replay(name)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - an operator's boundary; its text may quote the event
            raise UserError(f"{name} failed again ({type(error).__name__}) and stays in quarantine") from None
        if not is_known:
            raise _not_in_quarantine(name)
        yield {"name": name}

    async def attach(self, _: Line, connection: ControlConnection) -> None:
        """Attach a terminal to the console channel until it disconnects."""
        if not self._app.terminals:
            raise self._absent("the console is disabled; set channels.console.enabled to true")
        await self._app.terminals[0].attach(connection.receive, connection.send)

    def _absent(self, switched_off: str) -> UserError:
        return UserError(switched_off if self._app.channels else NO_GATEWAY)

    @operation("web login", makes_home=True, show=_code_rows)
    async def login(
        self,
        as_: Annotated[
            str | None, option("Log in as a user with this name, who is not an owner.", metavar="NAME")
        ] = None,
    ) -> AsyncIterator[Line]:
        """Print a login code for the page. It works once, for ten minutes; without --as it is the owner's.

        Yields the code, the page's address and, where it has a public one, a link with the code.
        """
        if as_ == "":  # a variable that a script forgot to set must not end in the owner's code
            raise UserError("--as needs a name, such as ann; without --as, the code is for the owner")
        page = self._page()
        code = await page.issue_code(as_ or "")
        yield self._entry(page, code, as_ or "")

    def _entry(self, page: WebChannel, code: str, who: str) -> Line:
        """Return *code* with the page's address and, where it has a public one, a link with the code."""
        public = self._app.settings.web.public_url
        below = "" if page.name == PAGE else f"{page.name}/"
        # A fragment stays in the browser: no log of a server or proxy contains it.
        link = f"{public.rstrip('/')}/{below}#code={code}" if public else ""
        address = f"{(public or self._app.web.url).rstrip('/')}/{below}"
        return {"code": code, "as": who, "link": link, "page": address}

    @operation(
        "web logins",
        Role.OWNER,
        show=rows(_user_row, empty="the page has no user; `parlour web invite NAME` prints a link for one"),
    )
    async def logins(self) -> AsyncIterator[Line]:
        """List the users of the page: role, logins, last visit, and an unused invitation."""
        for each in await self._page().users():
            yield dict(each)

    @operation("web invite", Role.OWNER, audit=AuditRule.CALL, show=_code_rows)
    async def invite(
        self,
        who: Annotated[str, argument("A name for the person, who is not an owner, such as ann.", "NAME")],
        days: Annotated[int, option("How long the invitation is valid.")] = 7,
    ) -> AsyncIterator[Line]:
        """Print an invitation to the page: a code, and a link with it. It works once.

        Whoever uses it is this person, with their conversations and memory if there are any.
        """
        if not 1 <= days <= _LONGEST_INVITATION:
            raise UserError(f"an invitation is valid for 1 to {_LONGEST_INVITATION} days")
        page = self._page()
        yield self._entry(page, await page.invite(who, timedelta(days=days)), who)

    @operation(
        "web logout",
        Role.OWNER,
        audit=AuditRule.CALL,
        show=rows(lambda line: f"{line['who']} is logged out ({_browsers(line['browsers'])})"),
    )
    async def logout(
        self, who: Annotated[str, argument("Its name in `parlour web logins`.", "NAME")]
    ) -> AsyncIterator[Line]:
        """End every login, invitation and shared link of a user, open pages included."""
        page = self._page()
        has_links = bool(await page.links.of_person(who))
        invited = {each["who"] for each in await page.users() if each["invited_until"]}
        browsers = await page.log_out(who)
        if not browsers and who not in invited and not has_links:
            raise UserError(
                f"no user {who!r} is logged in or has an invitation; `parlour web logins` lists all of them"
            )
        yield {"who": who, "browsers": browsers}

    @operation("web key", makes_home=True, show=rows(lambda line: line["key"]))
    async def create_key(
        self,
        as_: Annotated[str | None, option("For this person, who is not an owner.", metavar="NAME")] = None,
    ) -> AsyncIterator[Line]:
        """Print a new key of the API, which is shown this once; without --as it is the owner's.

        The key is the same person as the user of the page with this name, with one memory.
        """
        if as_ == "":  # as for a login
            raise UserError("--as needs a name, such as ann; without --as, the key is the owner's")
        api = self._api()
        secret, key = await api.create_key(as_ or "")
        await self._join_accounts(api.name, key)
        yield {"key": secret, "id": key.id, "who": key.who}

    async def _join_accounts(self, channel: str, key: ApiKey) -> None:
        """Make the person of *key* one with the user of the page, as `/link` would, at their first key."""
        from agent.memory.account_links.account_linker import LINK

        app = self._app
        accounts = [app.roster.account(channel, key.who), app.roster.account(PAGE, key.who)]
        keys, links = self._api().keys, app.store.links
        is_first = [each.who for each in keys.all()].count(key.who) == 1 and not await keys.was_joined(key.who)
        if app.settings.memory.isolation == "shared" or not is_first:
            return
        if links.person(accounts[0]) != links.person(accounts[1]):
            payload = {"accounts": [each.name for each in accounts]}
            job = Job(id=f"link:key:{key.id}", kind=LINK, scope="", payload=payload, due_at=app.store.journal.now())
            await app.store.jobs.put(job)
        await keys.note_joined(key.who)

    @operation(
        "web keys", Role.OWNER, show=rows(_key_row, empty="there is no key; `parlour web key --as NAME` makes one")
    )
    async def keys(self) -> AsyncIterator[Line]:
        """List the keys of the API, without their secrets."""
        for each in self._app.apis[0].keys.all() if self._app.apis else ():
            yield {"id": each.id, "who": each.who, "created_at": each.created_at.isoformat()}

    @operation(
        "web revoke",
        Role.OWNER,
        audit=AuditRule.CALL,
        subject="key",
        show=rows(lambda line: f"key {line['id']} of {line['who']} is revoked"),
    )
    async def revoke_key(
        self, key: Annotated[str, argument("Its id in `parlour web keys`, or NAME for all keys of a person.")]
    ) -> AsyncIterator[Line]:
        """Revoke a key of the API, or all keys of a person."""
        gone = await self._api().keys.revoke(key)
        if not gone:
            raise UserError(f"there is no key {key!r}; `parlour web keys` lists them")
        for each in gone:
            yield {"id": each.id, "who": each.who}

    def _api(self) -> ApiChannel:
        if not self._app.apis:
            raise self._absent("the API is disabled; set PARLOUR_CHANNELS__API__ENABLED=true and restart")
        return self._app.apis[0]

    def _page(self) -> WebChannel:
        if not self._app.chat_pages:
            raise self._absent("the page is disabled; set channels.web.enabled to true")
        return self._app.chat_pages[0]
