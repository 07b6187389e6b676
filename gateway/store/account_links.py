"""Which accounts are one person, and what has to move when that changes. The agent decides, the store remembers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import LinkedAccount, ScopeMove
from gateway.ports.journal import Job
from gateway.store.claims import has_jobs_elsewhere
from gateway.store.database import CachedRows, Database, SharedDatabase, upsert_sql
from gateway.store.engine import StoreEngine, new_transcript
from gateway.store.outbox import blank_delivered
from gateway.store.proposals import move_proposals
from gateway.store.row_codec import (
    encode_job,
    micros,
    moment,
    put_job,
    quote,
    read_json,
    read_key,
    unquote,
    write_json,
    write_key,
)
from gateway.store.transcripts import move_newest

_PEOPLE = "people/"
_PUT_ACCOUNT = upsert_sql("account", "identity", "person", "at")
_PUT_CHAT = upsert_sql("account_chat", "key", "identity")
_PUT_NOTE = upsert_sql("link_note", "name", "value")
_END_TRANSCRIPT = (
    "UPDATE record SET new_transcript = ? "
    "WHERE seq = (SELECT max(seq) FROM record WHERE scope = ? AND key = ? AND transcript = ?)"
)
_COPY_CHOICES = "INSERT INTO preference SELECT ?, name, value FROM preference WHERE subject = ? ON CONFLICT DO NOTHING"


@dataclass(slots=True)
class LinkSnapshot:
    """Linked accounts and their chats, cached in memory."""

    accounts: dict[str, LinkedAccount] = field(default_factory=dict)  # by name
    chats: dict[str, str] = field(default_factory=dict)  # key column -> account name
    moving: frozenset[str] = frozenset()  # scopes of moves that are not complete


def load(database: Database) -> LinkSnapshot:
    """Load the cached rows."""
    accounts = {
        unquote(identity): LinkedAccount(
            account=PlatformAccount.from_name(unquote(identity)), person=unquote(person), at=moment(at)
        )
        for identity, person, at in database.execute("SELECT identity, person, at FROM account")
    }
    chats = {key: unquote(identity) for key, identity in database.execute("SELECT key, identity FROM account_chat")}
    moves = [_read(read_json(payload)) for (payload,) in database.execute("SELECT payload FROM move")]
    moving = frozenset(scope for each in moves for scope in (each.source, each.target) if scope)
    return LinkSnapshot(accounts, chats, moving)


class SqlAccountLinks:
    """Accounts and persons; read from memory, changed in one transaction each."""

    def __init__(self, engine: StoreEngine, snapshot: LinkSnapshot, choices: dict[str, dict[str, str]]) -> None:
        """*choices* is the cache of `SqlPreferences`: a linked person's choices are merged in it."""
        self._engine = engine
        self._snapshot = snapshot
        self._choices = choices

    @property
    def moving(self) -> frozenset[str]:
        """The scopes whose memory a link or unlink is merging or dividing, at this or at another gateway."""
        return self._snapshot.moving

    def person(self, account: PlatformAccount) -> str:
        """Return the person to whom *account* belongs: the account's name, unless it was linked."""
        linked = self._snapshot.accounts.get(account.name)
        return linked.person if linked is not None else account.name

    def accounts(self, person: str) -> tuple[LinkedAccount, ...]:
        """Return the accounts of a person with several, the one that names the person first; else ()."""
        found = [each for each in self._snapshot.accounts.values() if each.person == person]
        return tuple(sorted(found, key=lambda each: (each.account.name != person, each.at, each.account.name)))

    def accounts_of_user(self, user: PlatformAccount) -> tuple[LinkedAccount, ...]:
        """Return the accounts of every linked person to whom *user* belongs.

        Without a team, *user* is that user in any team, as in settings and owners' decisions.
        """
        linked = self._snapshot.accounts
        persons = {each.person for each in linked.values() if user in (each.account, each.account.user)}
        if exact := linked.get(user.name):  # the id of a shortened name cannot be read back
            persons.add(exact.person)
        return tuple(account for person in sorted(persons) for account in self.accounts(person))

    def account_of(self, key: SessionKey) -> PlatformAccount | None:
        """Return the account that a linked person's direct chat belongs to; None if none is stored."""
        name = self._snapshot.chats.get(write_key(key))
        return PlatformAccount.from_name(name) if name else None

    async def note_chat(self, key: SessionKey, account: PlatformAccount) -> None:
        """Store which account a linked person's direct chat belongs to."""
        columns = (write_key(key), quote(account.name))

        def store(database: SharedDatabase) -> None:
            database.execute(_PUT_CHAT, columns)
            database.changes_cached(CachedRows.LINKS)

        await self._engine.writer.submit(store, lambda _: self._snapshot.chats.update({columns[0]: account.name}))

    async def notes(self) -> Mapping[str, str]:
        """Return the stored notes by name."""
        found = await self._engine.fetch("SELECT name, value FROM link_note")
        return {unquote(name): unquote(value) for name, value in found}

    async def note(self, name: str, value: str, *, was: str) -> bool:
        """Replace a note (an offer, a count of tries) if its value is still *was* ("" = absent); else return False."""

        def change(database: Database) -> bool:
            found = database.execute("SELECT value FROM link_note WHERE name = ?", (quote(name),)).fetchone()
            if (unquote(found[0]) if found else "") != was:
                return False
            if value:
                database.execute(_PUT_NOTE, (quote(name), quote(value)))
            else:
                database.execute("DELETE FROM link_note WHERE name = ?", (quote(name),))
            return True

        return await self._engine.writer.submit(change)

    async def link(self, move: ScopeMove) -> bool:
        """Make the person *move.source* part of *move.target*: accounts, sessions, jobs, choices. Twice is once.

        Returns False, without effect, while another gateway runs a job of one of them. Turns that run there run again.
        """
        return await self._begin(move, _link)

    async def unlink(self, move: ScopeMove) -> bool:
        """Make *move.account* a separate person again and start new conversations for both persons. Idempotent.

        Returns False as `link`.
        """
        return await self._begin(move, _unlink)

    async def adopt(self, move: ScopeMove) -> None:
        """Give data without a scope to *move.target* and start new conversations there. Idempotent."""
        await self._begin(move, _adopt)

    async def moves(self) -> Sequence[ScopeMove]:
        """Return the moves whose files may not have been moved yet, oldest first."""
        found = await self._engine.fetch("SELECT payload FROM move ORDER BY at, id")
        return [_read(read_json(payload)) for (payload,) in found]

    async def mark_moved(self, move: ScopeMove) -> None:
        """Say that the files stand where they belong."""

        def mark(database: SharedDatabase) -> LinkSnapshot:
            if move.kind == "unlink":  # what was being delivered when it began
                _blank_answers(database, move)
            database.execute("DELETE FROM move WHERE id = ?", (quote(move.id),)).close()
            database.changes_cached(CachedRows.LINKS)
            return load(database)

        await self._engine.writer.submit(mark, self.replace)

    def replace(self, snapshot: LinkSnapshot) -> None:
        """Take over what was read from the store."""
        known = self._snapshot
        known.accounts, known.chats, known.moving = snapshot.accounts, snapshot.chats, snapshot.moving

    async def _begin(self, move: ScopeMove, change: Callable[[Database, ScopeMove], ScopeMove]) -> bool:
        engine = self._engine

        def begin(database: SharedDatabase) -> LinkSnapshot | None:
            if database.execute("SELECT 1 FROM move WHERE id = ?", (quote(move.id),)).fetchone() is None:
                # The locks of scopes are of one process. The commit of a turn elsewhere is refused; a job would store
                # into the scope that ends.
                if engine.claims.is_shared and has_jobs_elsewhere(database, (move.source, move.target), engine.owner):
                    return None
                begun = change(database, move)
                database.execute(
                    "INSERT INTO move VALUES (?, ?, ?)", (quote(move.id), micros(move.at), write_json(_payload(begun)))
                )
                database.changes_cached(CachedRows.LINKS)
                database.changes_cached(CachedRows.CHOICES)
            return load(database)

        def adopt(snapshot: LinkSnapshot | None) -> None:
            if snapshot is None:
                return
            self.replace(snapshot)
            if move.kind != "unlink":
                mine = self._choices.get(move.target, {})
                self._choices[move.target] = {**self._choices.get(move.source, {}), **mine}
            engine.queued_job.set()

        self._engine.may_have_stale = True
        return await engine.writer.submit(begin, adopt) is not None


# -- in one transaction each ---------------------------------------------------------------------------


def _link(database: Database, move: ScopeMove) -> ScopeMove:
    source, target = move.source.removeprefix(_PEOPLE), move.target.removeprefix(_PEOPLE)
    single: list[str] = []
    for person in (target, source):
        # Chats of a person with one account are that account's; other persons' chats are noted already.
        snapshot = database.execute("SELECT 1 FROM account WHERE person = ?", (quote(person),)).fetchone()
        if snapshot is None:
            single.append(person)
            database.execute(_PUT_ACCOUNT, (quote(person), quote(person), micros(move.at)))
            chats = database.execute("SELECT key FROM session WHERE scope = ?", (quote(f"{_PEOPLE}{person}"),))
            database.executemany(_PUT_CHAT, [(key, quote(person)) for (key,) in chats])
    database.execute(
        "UPDATE account SET person = ?, at = ? WHERE person = ?", (quote(target), micros(move.at), quote(source))
    )
    scopes = (quote(move.target), quote(move.source))
    database.execute("UPDATE session SET scope = ? WHERE scope = ?", scopes)
    move_newest(database, scopes[1], scopes[0])
    move_proposals(database, scopes[1], scopes[0])
    database.execute("UPDATE job SET scope = ? WHERE scope = ?", scopes)
    database.execute(_COPY_CHOICES, scopes)
    return dataclasses.replace(move, single=tuple(single))


def _unlink(database: Database, move: ScopeMove) -> ScopeMove:
    person = move.source.removeprefix(_PEOPLE)
    assert move.account is not None  # noqa: S101 - each unlink names its account
    identity = quote(move.account.name)
    (since,) = database.execute("SELECT at FROM account WHERE identity = ?", (identity,)).fetchone()
    keys = [key for (key,) in database.execute("SELECT key FROM account_chat WHERE identity = ?", (identity,))]
    ended = _end_conversations(database, move.source, move.at)
    _blank_answers(database, move)
    for key in keys:
        database.execute("UPDATE session SET scope = ? WHERE key = ?", (quote(move.target), key))
    move_newest(database, quote(move.source), quote(move.target), keys=keys)
    names = frozenset(str(read_key(key)) for key in keys)
    _split_jobs(database, move, names)
    account = move.account.name
    move_proposals(database, quote(move.source), quote(move.target), keys=names, account=account)
    database.execute("DELETE FROM account WHERE identity = ?", (identity,))
    database.execute("DELETE FROM account_chat WHERE identity = ?", (identity,))
    left = database.execute("SELECT identity FROM account WHERE person = ?", (quote(person),)).fetchall()
    if len(left) == 1:  # a person with one account needs no entry
        database.execute("DELETE FROM account WHERE person = ?", (quote(person),))
        database.execute("DELETE FROM account_chat WHERE identity = ?", left[0])
    _summarise(database, ended, move)
    return dataclasses.replace(
        move, since=moment(since), keys=tuple(str(read_key(key)) for key in keys), ended=tuple(ended)
    )


def _adopt(database: Database, move: ScopeMove) -> ScopeMove:
    ended = _end_conversations(database, "", move.at)
    database.execute("UPDATE session SET scope = ? WHERE scope = ''", (quote(move.target),))
    move_newest(database, "", quote(move.target))
    move_proposals(database, "", quote(move.target))
    # Jobs about a chat or requested by a user. The installation's own jobs have no scope either, and stay.
    found = database.execute("SELECT seq, kind, payload FROM job WHERE scope = ''").fetchall()
    for seq, kind, payload in found:
        if kind == "remember" or read_json(payload).get("key") is not None:
            database.execute("UPDATE job SET scope = ? WHERE seq = ?", (quote(move.target), seq))
    database.execute(_COPY_CHOICES, (quote(move.target), ""))
    _summarise(database, ended, move)
    return dataclasses.replace(move, ended=tuple(ended))


def _end_conversations(database: Database, scope: str, at: datetime) -> list[tuple[str, str]]:
    """Start new conversations in *scope*, so that prompts hold no earlier message; return the ended ones."""
    found = database.execute(
        "SELECT key, transcript, next_index FROM session WHERE scope = ?", (quote(scope),)
    ).fetchall()
    for key, transcript, _ in found:
        fresh = new_transcript()
        database.execute(
            "UPDATE session SET transcript = ?, next_index = 0, created_at = ? WHERE key = ?",
            (fresh, micros(at), key),
        )
        database.execute(_END_TRANSCRIPT, (fresh, quote(scope), key, transcript))
        # Steps of a released turn hold results from before the move.
        database.execute(
            "DELETE FROM step WHERE turn IN (SELECT turn FROM inbox WHERE key = ? AND ended_at IS NULL AND turn != '')",
            (key,),
        )
    return [(str(read_key(key)), transcript) for key, transcript, next_index in found if next_index]


def _blank_answers(database: Database, move: ScopeMove) -> None:
    """Blank the delivered answers of every chat: those of one person's are out of the other's reach from here on."""
    scopes = (quote(move.source), quote(move.target))
    found = database.execute("SELECT key FROM session WHERE scope IN (?, ?)", scopes).fetchall()
    blank_delivered(database, [key for (key,) in found])


def _split_jobs(database: Database, move: ScopeMove, keys: frozenset[str]) -> None:
    """Move jobs about the account's chats, and jobs that the account requested, to the new person."""
    name = move.account.name if move.account else ""
    found = database.execute("SELECT seq, payload FROM job WHERE scope = ?", (quote(move.source),)).fetchall()
    for seq, text in found:
        payload = read_json(text)
        if payload.get("key") in keys or payload.get("by") == name:
            database.execute("UPDATE job SET scope = ? WHERE seq = ?", (quote(move.target), seq))


def _summarise(database: Database, transcripts: Sequence[tuple[str, str]], move: ScopeMove) -> None:
    """Queue summaries of the ended conversations, as after /new."""
    for key, transcript in transcripts:
        (scope,) = database.execute(
            "SELECT scope FROM session WHERE key = ?", (write_key(SessionKey.parse(key)),)
        ).fetchone()
        payload = {"prompt": "summarise", "key": key, "transcript": transcript, "turn": "", "length": 0}
        job = Job(id=f"summarise:{transcript}", kind="update", scope=unquote(scope), payload=payload, due_at=move.at)
        put_job(database, encode_job(job))


def _payload(move: ScopeMove) -> dict[str, Any]:
    times = {"at": micros(move.at), "since": micros(move.since) if move.since else None}
    fields = dataclasses.asdict(dataclasses.replace(move, account=None)) | times
    del fields["account"]
    return {**fields, "identity": move.account.name if move.account else ""}


def _read(payload: Mapping[str, Any]) -> ScopeMove:
    since = payload["since"]
    return ScopeMove(
        id=payload["id"],
        kind=payload["kind"],
        source=payload["source"],
        target=payload["target"],
        at=moment(payload["at"]),
        account=PlatformAccount.from_name(payload["identity"]) if payload["identity"] else None,
        since=moment(since) if since is not None else None,
        keys=tuple(payload["keys"]),
        single=tuple(payload["single"]),
        ended=tuple((key, transcript) for key, transcript in payload["ended"]),
    )
