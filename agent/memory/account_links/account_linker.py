"""Durable jobs that link two accounts to one person, and unlink an account again.

One transaction of the journal changes the account's person and stores the move; then the files are moved and the move
is deleted. Moves that a crash interrupted are completed at start, before any turn runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.disk import Disk
from agent.base.scopes import scope_folder
from agent.base.transcript_lines import format_time, parse_time
from agent.files.file_workspace import merge_workspaces
from agent.memory.account_links.document_merge import divide_documents, find_owners, move_documents
from agent.memory.account_links.scope_transfer import (
    HistorySplit,
    blank_answer,
    find_digests,
    merge_histories,
    merge_scope_files,
    sessions_of,
    split_scope_files,
    split_stored_files,
)
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.history.history_files import drop_absent_lines
from agent.memory.jobs.job_runner import JobKind, JobPace, RetryJobLater, ScopeLock
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import LinkedAccount, ScopeMove
from gateway.ports.journal import Job
from gateway.ports.memory import ScopeHistory

if TYPE_CHECKING:
    from gateway.store.account_links import SqlAccountLinks
    from gateway.store.documents import SqlDocuments
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts
log = structlog.get_logger(__name__)

LINK, UNLINK = "link", "unlink"
LINK_JOBS = JobKind(name=LINK, pace=JobPace.LONG, aliases=(UNLINK,), locks_scopes=True)
PEOPLE = "people/"
_RETRY_DELAY = timedelta(seconds=5)
_SHORT_DELAY, _BUSY_ELSEWHERE = timedelta(seconds=1), "another gateway runs a job of theirs"
_CLOCKS_APART = timedelta(minutes=10)  # of gateways, at most: an answer may look older than the link before it
_PAUSES = (0.5, 2.0, 10.0, 30.0)  # seconds before moving files is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLinker:
    """Handlers of the jobs.

    *jobs* is the queue that several gateways share; None = there is one gateway. *reopen* discards what is cached of a
    scope, *close_files* closes its open files.
    """

    home: Path
    links: SqlAccountLinks
    jobs: SqlJobs | None
    records: SqlTurnRecords
    transcripts: SqlTranscripts
    session_files: SessionFileWriter
    scope_lock: ScopeLock
    writing: asyncio.Lock
    files: SqlFiles
    documents: SqlDocuments
    history: SqlHistory
    memory_files: MemoryFileWriter
    reopen: Callable[[str], None]
    close_files: Callable[[str], Awaitable[None]]
    now: Callable[[], datetime]
    disk: Disk

    async def run(self, job: Job) -> RetryJobLater | None:
        """Link or unlink accounts."""
        return await (self.unlink(job) if job.kind == UNLINK else self.link(job))

    async def link(self, job: Job) -> RetryJobLater | None:
        """Link the job's two accounts to the person with the older conversations."""
        await self._complete(job)
        accounts = [PlatformAccount.from_name(str(each)) for each in job.payload["accounts"]]
        while True:
            persons = [self.links.person(each) for each in accounts]
            if persons[0] == persons[1]:
                return None
            scopes = [f"{PEOPLE}{each}" for each in persons]
            async with self.scope_lock.hold_exclusive(*scopes):
                if persons != [self.links.person(each) for each in accounts]:
                    continue
                if not await self.session_files.flush():
                    return RetryJobLater(_RETRY_DELAY, "messages are not written yet", counts=False)
                target, source = await self._by_age(scopes)
                move = ScopeMove(id=job.id, kind=LINK, source=source, target=target, at=self.now())
                await self._save_edits(scopes)
                if not await self.links.link(move):
                    return RetryJobLater(_SHORT_DELAY, _BUSY_ELSEWHERE, counts=False)
                await self._finish(await self._load_move(move.id))
                return None

    async def unlink(self, job: Job) -> RetryJobLater | None:
        """Unlink the job's account from its person; its companions leave too and are linked to it again."""
        await self._complete(job)
        account, *companions = [
            PlatformAccount.from_name(str(each))
            for each in (job.payload["account"], *job.payload.get("companions", ()))  # jobs of older versions have none
        ]
        leaving = (account, *companions)
        persons = {self.links.person(each) for each in leaving}
        if len(persons) == 1 and persons <= {each.name for each in leaving}:
            return None
        for n, each in enumerate(leaving):
            if later := await self._separate(each, f"{job.id}.{n}" if n else job.id):
                return later
        for each in companions:
            payload = {"accounts": [account.name, each.name]}
            if later := await self.link(dataclasses.replace(job, id=f"{job.id}.{each.name}", payload=payload)):
                return later
        return None

    async def _complete(self, job: Job) -> None:
        """Complete the moves that an earlier run of *job* has begun.

        The accounts are linked or separated already, so that the rest of the job has nothing to do. Otherwise only a
        start resumes moves, and no gateway starts where another one takes the job over.
        """
        for move in await self.links.moves():
            if _is_part(move, job):
                async with self.scope_lock.hold_exclusive(move.source, move.target):
                    await self._finish(move)

    async def _separate(self, account: PlatformAccount, move_id: str) -> RetryJobLater | None:
        """Make *account* a person of its own, unless it is the one that names its person."""
        person = self.links.person(account)
        if person == account.name:
            return None
        scopes = (f"{PEOPLE}{person}", f"{PEOPLE}{account.name}")
        async with self.scope_lock.hold_exclusive(*scopes):
            if not await self.session_files.flush():
                return RetryJobLater(_RETRY_DELAY, "messages are not written yet", counts=False)
            await self._save_edits(scopes[:1])
            move = ScopeMove(
                id=move_id, kind=UNLINK, source=scopes[0], target=scopes[1], at=self.now(), account=account
            )
            if not await self.links.unlink(move):
                return RetryJobLater(_SHORT_DELAY, _BUSY_ELSEWHERE, counts=False)
            await self._finish(await self._load_move(move.id))
            return None

    async def adopt(self, target: str, move: str) -> None:
        """Move the home's own memory (shared isolation) into the scope *target*, before turns run. Raises OSError."""
        await self._save_edits(("", target))
        await self.links.adopt(ScopeMove(id=move, kind="adopt", source="", target=target, at=self.now()))
        await self.resume()

    async def resume(self) -> None:
        """Complete the moves that a crash interrupted, before turns run. Raises OSError and StoreUnavailable.

        Where several gateways share the store, another one may be at a move: it is left to its job, or to a new one.
        """
        for move in await self.links.moves():
            if self.jobs is None or move.kind not in (LINK, UNLINK):
                await self._move(move)
            elif not any(_is_part(move, job) for job in await self.jobs.pending_of(move.kind)):
                await self.jobs.put(_job_of(move))

    async def _load_move(self, id_: str) -> ScopeMove:
        """Return a move with the fields that the store has added."""
        return next(each for each in await self.links.moves() if each.id == id_)

    async def _save_edits(self, scopes: tuple[str, ...] | list[str]) -> None:
        for scope in scopes:
            await self.memory_files.notice(scope)
            # A file that a person has edited is set aside, and goes with the rest.
            await self.memory_files.settle_history(scope)

    async def _by_age(self, scopes: list[str]) -> tuple[str, str]:
        """Return the scope with the older conversations, and the other; if neither is older, the asker's first."""
        first, second = [(await self.transcripts.count(scope))[1] for scope in scopes]
        if second is not None and (first is None or second < first):
            return scopes[1], scopes[0]
        return scopes[0], scopes[1]

    async def _finish(self, move: ScopeMove) -> None:
        """Move the files, retrying until it succeeds; the scopes stay locked, and a restart resumes the move."""
        attempts = 0
        while True:
            try:
                await self._move(move)
            except OSError as error:
                log.warning("links.not_moved", move=move.id, error=error.strerror or str(error))
                await asyncio.sleep(_PAUSES[min(attempts, len(_PAUSES) - 1)])
                attempts += 1
            else:
                return

    async def _move(self, move: ScopeMove) -> None:
        keys = [SessionKey.parse(key) for key in move.keys] if move.kind == UNLINK else None
        await self.transcripts.move(move.source, move.target, keys=keys)
        if move.kind == UNLINK:
            since = move.since
            if since is not None and self.jobs is not None:
                since -= _CLOCKS_APART
            for scope in (move.source, move.target):
                await self.transcripts.rewrite(scope, partial(blank_answer, since=since))
        folders = [scope_folder(self.home, scope) for scope in (move.source, move.target)]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.writing)
            for scope in (move.source, move.target):
                await self.close_files(scope)
            await stack.enter_async_context(self.memory_files.hold(move.source, move.target))
            await (self._split(move, folders) if move.kind == UNLINK else self._merge(move, folders))
            for scope in (move.source, move.target):
                await drop_absent_lines(self.history, scope, (await self.documents.read(scope, MEMORY)).text)
        for scope in (move.source, move.target):
            await self.memory_files.settle(scope)
            await self.memory_files.settle_history(scope)
            await self.session_files.write_scope(scope)
            self.reopen(scope)
        await self.links.mark_moved(move)
        log.info("links.moved", move=move.id, kind=move.kind)

    async def _split(self, move: ScopeMove, folders: Sequence[Path]) -> None:
        """Move what belongs to the leaving account. Idempotent.

        The documents go last, because they tell the owners of the lines of archives and of copies.
        """
        keys = set(move.keys)
        person = move.source.removeprefix(PEOPLE)
        leaving = move.account.name if move.account else ""
        sessions: Mapping[str, str] = {}

        def account_of(key: str) -> str:
            return leaving if key in keys else self._account(key, person)

        def account_of_entry(entry: str) -> str:
            session = sessions.get(entry, "")
            return account_of(session) if session else ""

        while True:  # until no other gateway has changed the histories meanwhile
            was = {scope: await self.history.load(scope) for scope in (move.source, move.target)}
            sessions = await asyncio.to_thread(sessions_of, was.values())
            owners = await find_owners(self.documents, move.source, account_of_entry, person)
            split = HistorySplit(leaving, account_of, owners)
            kept, moving = await asyncio.to_thread(split.split, was[move.source])
            if not (moving.entries or moving.raws or moving.notes):
                break
            merge = partial(merge_histories, was[move.target], moving, first_account="", second_account="")
            theirs = await asyncio.to_thread(merge)
            if await self.history.replace({move.source: kept, move.target: theirs}, was=was):
                break
        needed, staying = [await find_digests(scope, self.transcripts) for scope in (move.target, move.source)]
        split_files = partial(split_scope_files, self.home, self.disk, move, owners)
        await self.session_files.rearrange(folders, split_files)
        await divide_documents(self.documents, move.id, move.source, move.target, leaving, account_of_entry, person)
        await split_stored_files(self.files, move, needed, staying)

    async def _merge(self, move: ScopeMove, folders: Sequence[Path]) -> None:
        """Move the memory and files of the scope that ends. Idempotent."""
        # Changes without an author belong to the account of their scope, if the scope had one account only.
        owner = move.target.removeprefix(PEOPLE)
        persons = (move.source.removeprefix(PEOPLE) or owner, owner)
        source, target = (each if each in move.single or not move.source else "" for each in persons)
        while True:  # until no other gateway has changed the histories meanwhile
            was = {scope: await self.history.load(scope) for scope in (move.target, move.source)}
            if was[move.source] == ScopeHistory():
                break
            merge = partial(merge_histories, *was.values(), first_account=target, second_account=source)
            merged = await asyncio.to_thread(merge)
            if await self.history.replace({move.target: merged, move.source: ScopeHistory()}, was=was):
                break
        await merge_workspaces(self.files, move.source, move.target)
        await self.files.move(move.source, move.target)
        await move_documents(
            self.documents, move.id, move.source, move.target, source_account=source, target_account=target
        )
        move_files = partial(merge_scope_files, self.home, self.disk, move, accounts=(source, target))
        await self.session_files.rearrange(folders, move_files)

    def _account(self, key: str, person: str) -> str:
        try:
            account = self.links.account_of(SessionKey.parse(key))
        except ValueError:
            return person
        return account.name if account else person


def _job_of(move: ScopeMove) -> Job:
    """Return a job that completes *move*; it has no effect if the move is complete."""
    payload: dict[str, Any] = {"accounts": [each.removeprefix(PEOPLE) for each in (move.target, move.source)]}
    if move.account is not None:
        payload = {"account": move.account.name}
    return Job(id=move.id, kind=move.kind, scope="", payload=payload, due_at=move.at)


def _is_part(move: ScopeMove, job: Job) -> bool:
    """Return True if *job* has begun *move*."""
    return move.id == job.id or move.id.startswith(f"{job.id}.")


VALIDITY = timedelta(minutes=10)
MAX_ATTEMPTS = 5
LOCKOUT = timedelta(hours=1)
_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # without letters that look alike
_LENGTH = 8
_OFFER, _TRY = "offer:", "try:"
_SALT = b"parlour link"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParty:
    """One side of an offer: an account, its display name, and the chat for its approval question."""

    account: PlatformAccount
    label: str
    key: SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOffer:
    """An offer; `taker` is set once another account has entered the code."""

    name: str
    asker: LinkParty
    until: datetime
    taker: LinkParty | None = None
    agreed: tuple[PlatformAccount, ...] = ()

    def other(self, account: PlatformAccount) -> LinkParty | None:
        """Return the other side."""
        return self.taker if account == self.asker.account else self.asker

    @property
    def is_agreed(self) -> bool:
        """True if both sides have agreed."""
        return self.taker is not None and {self.asker.account, self.taker.account} == set(self.agreed)


@dataclass(frozen=True, slots=True)
class LinkLocked:
    """Too many wrong codes; further codes are refused for some minutes."""

    minutes: int


class LinkRefusal(Enum):
    """Why a code is not redeemed."""

    UNKNOWN = auto()  # no valid offer has it
    SAME_PERSON = auto()  # both accounts are one person already


class AccountLinkService:
    """Services of `/link` and `/unlink`."""

    def __init__(
        self, links: SqlAccountLinks, *, together: Sequence[PlatformAccount] = (), now: Callable[[], datetime]
    ) -> None:
        """*together* are the accounts that are always one person and leave another person only together."""
        self._links = links
        self._together = together
        self._now = now
        self._lock = asyncio.Lock()  # around reading, changing and writing an offer

    def person(self, account: PlatformAccount) -> str:
        """Return the person that an account belongs to."""
        return self._links.person(account)

    def accounts(self, person: str) -> tuple[LinkedAccount, ...]:
        """Return the accounts of a person with several, the one that is the person's id first."""
        return self._links.accounts(person)

    def separable(self, person: str) -> Sequence[PlatformAccount]:
        """Return the accounts that `/unlink` can separate from *person*: of several that leave together, the first."""
        names = {each.name for each in self._together}
        found = [each.account for each in self._links.accounts(person) if each.account.name != person]
        fixed = [each for each in found if each.name in names]
        passed_over = fixed if person in names else fixed[1:]
        return [each for each in found if each not in passed_over]

    async def offer(self, asker: LinkParty) -> str:
        """Create an offer and return its code; an earlier code of the same account expires."""
        code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        name = await _name_of(code)
        async with self._lock:
            for each in await self._offers():
                if each.asker.account == asker.account and each.taker is None:
                    await self._drop(each)
            await self._put(LinkOffer(name=name, asker=asker, until=self._now() + VALIDITY))
        return code

    async def redeem(self, code: str, taker: LinkParty) -> LinkOffer | LinkLocked | LinkRefusal:
        """Enter a code for *taker*; return its offer, or the reason for refusing it."""
        name = await _name_of(code)
        async with self._lock:
            minutes = await self._lockout_minutes(taker.account)
            if minutes:
                return LinkLocked(minutes)
            offer = next((each for each in await self._offers() if each.name == name), None)
            if offer is None or (offer.taker is not None and offer.taker.account != taker.account):
                await self._note_wrong(taker.account)
                return LinkRefusal.UNKNOWN
            persons = {self._links.person(each.account) for each in (taker, offer.asker)}
            if len(persons) == 1:
                return LinkRefusal.SAME_PERSON
            if offer.taker is None:
                offer = replace(offer, taker=taker, until=self._now() + VALIDITY)
                await self._put(offer)
            return offer

    async def revoke(self, code: str) -> bool:
        """Delete the offer of a code that others have seen; return False for an unknown code."""
        name = await _name_of(code)
        async with self._lock:
            offers = [each for each in await self._offers() if each.name == name]
            for each in offers:
                await self._drop(each)
            return bool(offers)

    async def agree(self, account: PlatformAccount) -> LinkOffer | None:
        """Record the agreement of *account*; return its open offer, or None."""
        async with self._lock:
            offer = await self._open_offer(account)
            if offer is None or account in offer.agreed:
                return offer
            offer = replace(offer, agreed=(*offer.agreed, account))
            await self._put(offer)
            return offer

    async def refuse(self, account: PlatformAccount) -> LinkOffer | None:
        """Delete and return the open offer of *account*, or None."""
        async with self._lock:
            offer = await self._open_offer(account)
            if offer is not None and not offer.is_agreed:
                await self._drop(offer)
                return offer
            return None

    def link_job(self, offer: LinkOffer) -> Job:
        """Return the job that links the two accounts; an offer always gives the same job."""
        assert offer.taker is not None  # noqa: S101 - both agreed
        accounts = [offer.asker.account.name, offer.taker.account.name]
        return Job(id=f"link:{offer.name}", kind=LINK, scope="", payload={"accounts": accounts}, due_at=self._now())

    async def unlink_job(self, account: PlatformAccount, turn: str) -> Job:
        """Return the job that unlinks *account* and those that leave with it; offers that they took are deleted."""
        leaving = self._together if account in self._together else (account,)
        async with self._lock:
            for each in await self._offers():
                if set(leaving) & set(each.agreed):
                    await self._drop(each)
        companions = [each.name for each in leaving if each != account]
        payload = {"account": account.name, "companions": companions}
        return Job(id=f"unlink:{turn}", kind=UNLINK, scope="", payload=payload, due_at=self._now())

    # -- private; the caller holds the lock --------------------------------------------------------

    async def _open_offer(self, account: PlatformAccount) -> LinkOffer | None:
        """Return the newest offer with a taker that *account* is a side of."""
        offers = [
            each
            for each in await self._offers()
            if each.taker is not None and account in (each.asker.account, each.taker.account)
        ]
        return max(offers, key=lambda each: each.until, default=None)

    async def _offers(self) -> list[LinkOffer]:
        """Return the valid offers; delete expired ones."""
        offers = []
        for name, value in (await self._links.notes()).items():
            if name.startswith(_OFFER):
                offer = _from_json(name, json.loads(value))
                if offer.until > self._now():
                    offers.append(offer)
                else:
                    await self._links.note(name, "", was=value)
        return offers

    async def _put(self, offer: LinkOffer) -> None:
        before = (await self._links.notes()).get(offer.name, "")
        await self._links.note(offer.name, json.dumps(_to_json(offer)), was=before)

    async def _drop(self, offer: LinkOffer) -> None:
        before = (await self._links.notes()).get(offer.name, "")
        await self._links.note(offer.name, "", was=before)

    async def _lockout_minutes(self, account: PlatformAccount) -> int:
        """Return the minutes until *account* may enter a code again, 0 if it may now."""
        _, count, until = await self._attempts(account)
        left = until - self._now()
        return int(left.total_seconds() // 60) + 1 if count >= MAX_ATTEMPTS and left > timedelta(0) else 0

    async def _note_wrong(self, account: PlatformAccount) -> None:
        value, count, until = await self._attempts(account)
        count = count + 1 if until > self._now() else 1
        attempts = {"count": count, "until": format_time(self._now() + LOCKOUT)}
        await self._links.note(f"{_TRY}{account.name}", json.dumps(attempts), was=value)

    async def _attempts(self, account: PlatformAccount) -> tuple[str, int, datetime]:
        """Return the stored note, the number of wrong codes, and the end of the lockout."""
        value = (await self._links.notes()).get(f"{_TRY}{account.name}", "")
        attempts = json.loads(value) if value else {}
        return value, int(attempts.get("count", 0)), parse_time(attempts.get("until")) or self._now()


async def _name_of(code: str) -> str:
    """Return the name of an offer's note: a slow hash of its code, so that a stolen journal reveals no code."""
    plain = "".join(code.upper().split()).encode("utf-8", "replace")
    digest = await asyncio.to_thread(hashlib.scrypt, plain, salt=_SALT, n=2**12, r=8, p=1, dklen=20)
    return f"{_OFFER}{digest.hex()}"


def _to_json(offer: LinkOffer) -> dict[str, Any]:
    def side(party: LinkParty) -> dict[str, str]:
        return {"identity": party.account.name, "label": party.label, "key": str(party.key)}

    return {
        "asker": side(offer.asker),
        "taker": side(offer.taker) if offer.taker else None,
        "until": format_time(offer.until),
        "agreed": [each.name for each in offer.agreed],
    }


def _from_json(name: str, fields: Mapping[str, Any]) -> LinkOffer:
    def side(party: Mapping[str, str]) -> LinkParty:
        account = PlatformAccount.from_name(party["identity"])
        return LinkParty(account=account, label=party["label"], key=SessionKey.parse(party["key"]))

    until = parse_time(fields["until"])
    assert until is not None  # noqa: S101 - we wrote it
    return LinkOffer(
        name=name,
        asker=side(fields["asker"]),
        taker=side(fields["taker"]) if fields["taker"] else None,
        until=until,
        agreed=tuple(map(PlatformAccount.from_name, fields["agreed"])),
    )
