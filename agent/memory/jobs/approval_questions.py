"""Questions about staged changes: sent once to the session where the change arose, between two turns.

A question is a job message in the session queue, so that it never interrupts an answer and survives a crash. The turn
that asks is stored with the staged changes before the question is sent.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import structlog
from cachetools import LRUCache

from agent.base.scopes import quote
from agent.memory.editing.staged_changes import LONGEST_CHANGE, MEMORY, StagedChange, StagedChangeStore, StagedErasure
from agent.memory.editing.text_operations import AddLines, RemoveLines, ReplaceLines
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from gateway.events import (
    ChatKind,
    InboundKind,
    InboundMessage,
    MessageButton,
    PlatformAccount,
    Role,
    Sender,
    SessionKey,
)
from gateway.i18n import translate
from gateway.ports.journal import AcceptOutcome, Job
from gateway.text.message_text import one_line, show_code, show_escapes

if TYPE_CHECKING:
    from gateway.store.journal import SqlJournal


log = structlog.get_logger(__name__)

ASKS = "job:ask/"  # prefix of a question's message id; the message's text is the scope
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}\Z")  # names that a button's command may contain
_SHOWN = 8  # characters of a name, where they tell it from the others
_MOST = 5  # things that one message has buttons for: Discord takes five rows
_LONGEST = 200  # characters of a quote
_KNOWN = 10_000
_DELETED = "deleted"  # why: the message that it came from was taken back


class ApprovalQuestions:
    """Puts questions into lanes."""

    def __init__(
        self,
        staging: StagedChangeStore,
        journal: SqlJournal,
        *,
        now: Callable[[], datetime],
        account: Callable[[SessionKey], PlatformAccount | None] = lambda _: None,
    ) -> None:
        """Ask about the changes in *staging*; *account* returns the account of a linked person's direct chat."""
        self._staging = staging
        self._account = account
        self._journal = journal
        self._now = now
        self._queued: LRUCache[tuple[str, str], None] = LRUCache(_KNOWN)  # (scope, name) with a question in a queue

    def after(self, handler: Handler) -> Handler:
        """Return *handler* wrapped so that each run, also a repeated one, is followed by `look`."""

        async def run(job: Job) -> RetryJobLater | None:
            later = await handler(job)
            await self.look(job.scope)
            return later

        return run

    async def look(self, scope: str) -> None:
        """Queue a question in every session with staged changes of *scope* that were not asked about."""
        sessions: dict[str, list[str]] = {}
        for each in await self._staging.pending_changes(scope):
            if each.session and not each.asked and (scope, each.name) not in self._queued:
                sessions.setdefault(each.session, []).append(each.name)
        for session, names in sessions.items():
            if await self._ask(scope, session):
                self._queued.update(dict.fromkeys((scope, name) for name in names))

    async def _ask(self, scope: str, session: str) -> bool:
        """Queue a question in *session*; return False if it was not accepted."""
        try:
            key = SessionKey.parse(session)
        except ValueError:
            return False
        question = InboundMessage(
            key=key,
            # A question that finds nothing to ask any more says nothing, so that one too many is harmless.
            message_id=f"{ASKS}{secrets.token_hex(8)}",
            sender=self._sender(scope, key),
            text=scope,
            sent_at=self._now(),
            kind=InboundKind.JOB,
            chat_kind=ChatKind.GROUP if scope.startswith("chats/") else ChatKind.DIRECT,
            is_private=bool(key.thread) and scope == f"chats/{quote(session)}",
        )
        accepted = await self._journal.accept(question, role=Role.MEMBER, is_control=False)
        log.info("asking.queued", key=session, outcome=str(accepted.outcome))
        return accepted.outcome is AcceptOutcome.NEW

    def _sender(self, scope: str, key: SessionKey) -> Sender:
        """Return the sender that makes the question belong to the scope of the chat's own messages."""
        owner = self._account(key)
        if owner is None and scope.startswith("people/"):
            owner = PlatformAccount.from_name(scope.removeprefix("people/"))
        return Sender(id=key.chat) if owner is None else Sender(id=owner.id, team=owner.team)


def question_scope(message: InboundMessage) -> str | None:
    """Return the scope of an approval question, or None for any other message."""
    is_ours = message.kind is InboundKind.JOB and message.message_id.startswith(ASKS)
    return message.text if is_ours else None


# -- words -----------------------------------------------------------------------------------------


def question(
    changes: Sequence[StagedChange], language: str, *, is_shared: bool
) -> tuple[str, tuple[MessageButton, ...]]:
    """Return one message about *changes*, each shown whole, and its buttons; those beyond its length are counted."""
    shown = select_shown(changes)
    if len(changes) == 1:
        return _describe(changes[0], language, is_shared=is_shared), buttons(shown, language)
    lines = [f"{n}. {_describe(each, language, is_shared=is_shared)}" for n, each in enumerate(shown, 1)]
    if len(changes) > len(shown):
        lines.append(translate("approvals.more", language, count=len(changes) - len(shown)))
    return "\n".join([translate("approvals.several", language), "", *lines]), buttons(shown, language)


def select_shown(changes: Sequence[StagedChange]) -> Sequence[StagedChange]:
    """Return the first of *changes* that one message shows whole and has buttons for; at least one."""
    count = length = 0
    for each in changes[:_MOST]:
        length += each.shown_length
        if count and length > LONGEST_CHANGE:
            break
        count += 1
    return changes[:count]


def _describe(changes: StagedChange, language: str, *, is_shared: bool) -> str:
    """Return everything that approval would change; of an erasure the amounts and examples."""
    if changes.erasure is not None:
        asked = erasure_question(changes.erasure, language, has_examples=not is_shared)
        # A model chose the words. Members of a group must not read them: they may be what is to be forgotten.
        if is_shared or changes.erasure.is_purge:
            return asked
        return f"{asked}\n{translate('erasure.words', language, words=show_code(changes.erasure.words))}"
    if changes.why == _DELETED and is_shared:  # do not quote a deleted message in a group
        return translate("approvals.deleted", language)
    sentences = ("approvals.forget", "approvals.reword", "approvals.keep")
    what = "; ".join(describe_operations(changes, language, sentences, show=_show_line))
    why = f"approvals.why_{changes.why}" if changes.why in ("untrusted", "many", _DELETED) else "approvals.why_other"
    return translate(why, language, what=what)


def describe_operations(
    changes: StagedChange, language: str, sentences: tuple[str, str, str], *, show: Callable[[str], str] = show_code
) -> list[str]:
    """Return a text for each operation of *changes*, whole, with its document, heading and the line that it follows.

    The catalogue's *sentences* are those of a removal, a replacement and an addition; *show* formats a line. Every
    question about memory is made of these texts, because people approve the operations that they were shown.
    """
    removed, replaced, added = sentences
    texts: list[str] = []
    for each in changes.operations:
        match each:
            case RemoveLines(old):
                text = translate(removed, language, line=show(old))
            case ReplaceLines(old, new):
                text = translate(replaced, language, old=show(old), new=show(new))
            case AddLines(new):
                text = translate(added, language, line=show(new))
        document = [changes.document] if changes.document != MEMORY else []
        after = each.after if isinstance(each, AddLines) else ""
        place = [show_code(name) for name in (*document, *filter(None, [each.under, after]))]
        texts.append(f"{text} ({', '.join(place)})" if place else text)
    return texts


def erasure_question(erasure: StagedErasure, language: str, *, has_examples: bool = True) -> str:
    """Return the amounts that an erasure would clear, and with *has_examples* a few of the lines."""
    amounts = translate(
        "erasure.would_purge" if erasure.is_purge else "erasure.would_erase",
        language,
        remembered=erasure.remembered,
        summaries=erasure.summaries,
        messages=erasure.messages,
    )
    found = erasure.remembered + erasure.summaries + erasure.messages + erasure.files
    examples = [f"- {short(each)}" for each in erasure.examples] if has_examples else []
    rest = found - len(examples)
    more = [translate("erasure.more", language, count=rest)] if examples and rest > 0 else []
    files = [translate("erasure.would_clear_files", language, files=erasure.files)] if erasure.files else []
    return "\n".join([amounts, *examples, *more, *files, translate("erasure.sure", language)])


def buttons(changes: Sequence[StagedChange], language: str, *, command: str = "memory") -> tuple[MessageButton, ...]:
    """Return a yes and a no button for each change, numbered if there are several; *command* takes the answer."""
    found: list[MessageButton] = []
    for n, each in enumerate(changes[:_MOST]):
        if not _NAME.match(each.name):
            continue
        number = f" ({n + 1})" if len(changes) > 1 else ""
        for answer, word in (("yes", "approve"), ("no", "reject")):
            label = f"{translate(f'approvals.{answer}', language)}{number}"
            found.append(MessageButton(label, f"/{command} {word} {each.name}", n))
    return tuple(found)


def short_name(changes: StagedChange) -> str:
    """Return the beginning of the name, for people to type."""
    return changes.name[:_SHOWN]


def _show_line(text: str) -> str:
    """Return *text* whole, as code; a single list item without its bullet."""
    is_item = text.startswith("- ") and "\n" not in text
    return show_code(text[2:] if is_item else text)


def short(text: str) -> str:
    """Return *text* as one line of code markup, which no platform turns into a link, an image or a mention."""
    quoted = show_escapes(one_line(text.replace("`", "'"), _LONGEST))
    return f"`{quoted}`"
