"""What a turn does for its tool calls: their review, memory to edit and erase, and pages of long results.

A call is reviewed before it runs: effects that may have happened, rights, daily caps, questions to a person. Memory is
bound to the turn's sender, scope and rights. The model sees one page of a long result at a time; the scope keeps the
whole text for a week.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.file_facts import UNTRUSTED
from agent.files.outgoing_files import OutgoingFiles
from agent.llm.chat_model import ToolCall
from agent.memory.editing.memory_archive import MemoryArchive
from agent.memory.editing.text_operations import DocumentEdit
from agent.memory.erasure.erase_service import EraseService
from agent.memory.erasure.word_eraser import ErasureRequester
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from agent.memory.jobs.chat_edits import ChatEditRequest, ChatEditResult, ChatMemoryEditor, LineChange
from agent.memory.search.search_unit import SearchHit
from agent.tools.rights import CallVerdict, RefusalRule
from agent.tools.tool import LONGEST_RESULT, OUTCOME_UNKNOWN, CallFacts, ToolKind
from agent.tools.tool_questions import LIFETIME, RUN_LIFETIME, StandingDecisions, ToolQuestion, question_id
from agent.turns.turn import Turn
from agent.turns.turn_draft import StagedEffects
from gateway.errors import StoreUnavailable, ToolFailed
from gateway.events import InboundKind, Role
from gateway.i18n import command_prefix
from gateway.ports.access import ToolCallCaps
from gateway.ports.journal import Line
from gateway.ports.memory import FileKind
from gateway.text.message_text import clean_name

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles
    from gateway.store.jobs import SqlJobs

WAITING = "waiting for approval"
_IN_DOUBT = "not run: the same call was already made in this turn and may have happened; ask the person first"


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call, for the model, and what the call staged."""

    text: str
    effects: StagedEffects | None = None
    is_untrusted: bool = False
    is_error: bool = False
    rule: RefusalRule | None = None  # that refused the call
    seconds: float = 0.0  # that it ran


class CallReviewer:
    """Lets calls run, refuses them, or asks a person."""

    def __init__(
        self, *, outgoing: OutgoingFiles, jobs: SqlJobs, caps: ToolCallCaps, now: Callable[[], datetime]
    ) -> None:
        self._outgoing = outgoing
        self._decisions = StandingDecisions(jobs)
        self._caps = caps
        self._now = now

    async def review(self, turn: Turn, call: ToolCall) -> CallResult | None:
        """Return the result of a call that must not run now; None for one that runs, which is counted."""
        draft, toolbox = turn.draft, turn.profile.toolbox
        if call.id in draft.intents:  # whatever the tool is now
            return CallResult(OUTCOME_UNKNOWN)
        if not toolbox.is_repeatable(call) and any(toolbox.is_same(call, each) for each in draft.doubtful_calls):
            return CallResult(_IN_DOUBT, rule=RefusalRule.DOUBT)
        decisions = await self._decisions_about(turn, call)
        # From here on nothing waits until the call is counted, where one gateway counts: calls that run side by side
        # stay below the cap. Of several gateways, the count itself says whether the call still may run.
        kind, facts = toolbox.capped_as(call), self._facts(turn, call, decisions)
        verdict = toolbox.review(call, facts)
        if kind is not None and not verdict.refusal and verdict.question is None:
            exceeded = await self._caps.count_tool_call(
                kind,
                turn=turn.id,
                call=draft.call_key(call),
                accounts=turn.accounts,
                account=turn.account,
                chat=str(turn.key),
            )
            if exceeded is not None:
                verdict = toolbox.review(call, replace(facts, exceeded_limit=exceeded.limit))
        if verdict.refusal:
            if verdict.rule is RefusalRule.CAP and kind is not None:
                self._caps.note_tool_refusal(kind)
            return CallResult(verdict.refusal, rule=verdict.rule)
        if verdict.question is not None:
            return await self._ask(turn, call, verdict)
        return None

    async def verdict(self, turn: Turn, call: ToolCall) -> CallVerdict:
        """Return whether *call* may run, without any effect: nothing is counted, staged or asked."""
        decisions = await self._decisions_about(turn, call)
        return turn.profile.toolbox.verdict(call, self._facts(turn, call, decisions))

    def _facts(self, turn: Turn, call: ToolCall, decisions: Mapping[tuple[str, str, str], bool]) -> CallFacts:
        allowed = turn.allowed
        kind = turn.profile.toolbox.capped_as(call)
        exceeded = (
            None if kind is None else self._caps.exceeded_tool_cap(kind, turn.accounts, call=turn.draft.call_key(call))
        )
        return CallFacts(
            role=turn.role,
            chat_kind=turn.message.chat_kind,
            is_untyped=_is_untyped(turn),
            is_tainted=turn.draft.is_tainted_call(call),
            turn=turn.id,
            call=call.id,
            sender=turn.message.sender.id,
            lines=turn.all_lines,
            can_attach=self._outgoing.can_send(turn.key),
            exceeded_limit=exceeded.limit if exceeded is not None else 0,
            decisions=decisions,
            allowed_schema=allowed.schema if allowed is not None and call.id == allowed.id else "",
        )

    async def _decisions_about(self, turn: Turn, call: ToolCall) -> Mapping[tuple[str, str, str], bool]:
        """Return the standing decisions of the turn's person here, if *call* could ask."""
        if turn.is_shared or not turn.profile.toolbox.can_ask(call):
            return {}
        return await self._decisions.verdicts(turn.scope, turn.key, turn.account.name)

    async def _ask(self, turn: Turn, call: ToolCall, verdict: CallVerdict) -> CallResult:
        """Stage the question about *call*, with a file if its arguments are long; return the call's result."""
        effects = StagedEffects()
        question = self._question(turn, call, verdict)
        if question.attached:
            try:
                await turn.bind_files(self._outgoing, effects)(question.file_name, question.attached)
            except ToolFailed as error:
                text = f"not run: a person must be shown the whole call, and {error}"
                return CallResult(text, effects, rule=RefusalRule.LENGTH)
        effects.ask = asdict(question)
        return CallResult(WAITING, effects)

    def _question(self, turn: Turn, call: ToolCall, verdict: CallVerdict) -> ToolQuestion:
        message, toolbox = turn.message, turn.profile.toolbox
        inner = toolbox.inner(call)
        is_program = toolbox.kind_of(call) is ToolKind.RUN
        lifetime = RUN_LIFETIME if is_program else LIFETIME
        return ToolQuestion(
            id=question_id(turn.id, call.id),
            key=str(turn.key),
            turn=turn.id,
            sender=message.sender.id,
            sender_name=clean_name(message.sender.name),
            team=message.sender.team,
            chat_kind=str(message.chat_kind),
            is_private=message.is_private,
            guild=message.guild,
            is_untyped=_is_untyped(turn),
            tool=inner.name,
            arguments=inner.arguments,
            schema=toolbox.schema_digest(call),
            why=str(verdict.question),
            subject=verdict.subject,
            can_last=verdict.can_last,
            is_for_owner=verdict.is_for_owner,
            is_personal=verdict.is_personal,
            costs=toolbox.costs_of(call),
            seconds=int(lifetime.total_seconds()),
            at=self._now().isoformat(timespec="seconds"),
        )


def _is_untyped(turn: Turn) -> bool:
    """Return True if no message of the person led to the turn; a yes to a job's call does not change that."""
    if (allowed := turn.allowed) is not None:
        return allowed.is_untyped
    return turn.message.kind is InboundKind.JOB and not turn.retried


MOST_RESULTS = 100  # of a scope; the oldest go first
KEPT_FOR = timedelta(days=7)
_CUT = "\n[cut: the rest of this result was not kept]"
_NAME_LENGTH = 8  # hex digits of the digest in a result's name

PageReader = Callable[[str, int], Awaitable[str]]  # (name, page)


class ToolResultPages:
    """Stores results that are longer than a page, by the SHA-256 of their texts."""

    def __init__(self, files: SqlFiles, now: Callable[[], datetime]) -> None:
        self._files = files
        self._now = now

    async def cut(self, scope: str, text: str, page: int, effects: StagedEffects, *, is_cut: bool = False) -> str:
        """Return *text*, or its first page if it is longer than *page* characters; then *effects* name the rest.

        With *is_cut* the text is the beginning of a longer one. A full disk costs the other pages, not the turn.
        """
        if len(text) <= page:
            return text
        data = text.encode("utf-8", "replace")[:LONGEST_RESULT]
        try:
            stored = await self._files.put(scope, FileKind.RESULT, data, at=self._now(), most=MOST_RESULTS)
        except OSError as error:
            log.warning("result.not_stored", error=type(error).__name__, number=error.errno)
            effects.footer = _CUT
            return text[:page]
        kept = data.decode("utf-8", "ignore")
        effects.paged = {"sha": stored.name, "page": page}
        if is_cut or len(kept) < len(text):
            effects.paged["cut"] = True
        effects.footer = _footer(effects.paged, 1, kept)
        return kept[:page]

    def bind(self, scope: str, lines: Callable[[], Iterable[Line]], effects: StagedEffects) -> PageReader:
        """Return the reader of the results that *lines* name, for one call; it taints as the result did."""

        async def read(name: str, page: int) -> str:
            line = next((each for each in reversed([*lines()]) if _name(each.get("paged")) == name), None)
            if line is None:
                raise ToolFailed(f"there is no result {name[:64]!r} in this conversation")
            paged = line["paged"]
            if line.get("origin") == UNTRUSTED:
                effects.taint()
            text = await self._load(scope, str(paged["sha"]))
            if text is None:
                raise ToolFailed("this result is not kept any more; call the tool again")
            chars, total = int(paged["page"]), _count_pages(text, int(paged["page"]))
            if not 1 <= page <= total:
                raise ToolFailed(f"this result has the pages 1 to {total}")
            effects.footer = _footer(paged, page, text) if page < total else _CUT if paged.get("cut") else ""
            return text[(page - 1) * chars : page * chars]

        return read

    async def prune(self) -> int:
        """Remove what was stored more than a week ago, in all scopes; return the number of results."""
        return await self._files.expire(FileKind.RESULT, before=self._now() - KEPT_FOR)

    async def _load(self, scope: str, digest: str) -> str | None:
        file = await self._files.find(scope, FileKind.RESULT, digest)
        data = await self._files.load(scope, file) if file is not None else None
        return data.decode("utf-8", "ignore") if data is not None else None


def _name(paged: object) -> str:
    """Return the name by which a model asks for a stored result; "" for anything else."""
    return f"r{str(paged.get('sha', ''))[:_NAME_LENGTH]}" if isinstance(paged, Mapping) else ""


def _count_pages(text: str, page: int) -> int:
    return -(-len(text) // page)


def _footer(paged: Mapping[str, Any], page: int, text: str) -> str:
    """Return the line below *page* that names the next one."""
    total = _count_pages(text, int(paged["page"]))
    return f'\n[page {page} of {total}: read_result("{_name(paged)}", {page + 1})]'


log = structlog.get_logger(__name__)

_MOST_SHOWN = 5  # changed lines that an answer names
_LONGEST_SHOWN = 200
_HELD = {
    "untrusted": "Not changed yet: text by other people is in this conversation, so the person is asked to confirm",
    "many": "Not changed yet: so many lines are removed only after the person has confirmed. They are asked",
}


class TurnMemoryTools:
    """Changes of memory by tools; the rights are those of `/remember` and `/forget`."""

    def __init__(self, home: Path, editor: ChatMemoryEditor, erasure: EraseService, archive: MemoryArchive) -> None:
        self._home = home
        self._editor = editor
        self._erasure = erasure
        self._archive = archive

    async def note_found(self, scope: str, hits: Sequence[SearchHit]) -> None:
        """Record which lines of MEMORY.md a search of *scope* returned, so that they stay there."""
        texts = [hit.text for hit in hits if hit.source == "memory/MEMORY.md"]
        if not texts:
            return
        try:
            await self._archive.note_found(scope, texts)
        except StoreUnavailable as error:  # the search has its answer, and the record is derived
            log.warning("memory.use_not_recorded", error=type(error).__name__)

    def bind_edit(
        self, turn: Turn, call: str, effects: StagedEffects, *, is_tainted: bool
    ) -> Callable[[Sequence[DocumentEdit]], Awaitable[str]]:
        """Return the function that edits the memory of the turn's scope, once per *call*."""
        request = ChatEditRequest(
            scope=turn.scope,
            account=turn.account.name,
            turn=turn.id,
            call=call,
            may_all=may_edit_all(turn),
            is_tainted=is_tainted,
        )

        async def edit(edits: Sequence[DocumentEdit]) -> str:
            done = await self._editor.edit(request, edits)
            if done.held:
                records = [each.record() for each in done.held]
                effects.edits.append({"edits": records, "why": done.why, "cause": request.cause})
                return f"{_HELD[done.why]} when this answer is sent."
            if done.changes:
                effects.changes.append(_record(done))
            return _describe(done, command_prefix(turn.language))

        return edit

    def bind_erasure(self, turn: Turn, effects: StagedEffects) -> Callable[[str], Awaitable[str]]:
        """Return the function that stages the question whether words are to be erased."""

        async def ask(words: str) -> str:
            pattern = ErasurePattern.of(words, turn.language)
            if pattern is None:
                raise ToolFailed(f"give words of at least {SHORTEST} characters, or a short text in double quotes")
            requester = ErasureRequester(
                account=turn.account, sender=turn.message.sender.id, may_all=may_edit_all(turn)
            )
            preview = await self._erasure.word_eraser.preview(turn.scope, pattern, requester, turn="")
            found = preview.result
            if not found.total:
                near = await self._erasure.word_eraser.near_words(turn.scope, pattern)
                similar = f" Similar words: {', '.join(near)}." if near else ""
                return f"Nothing matches these words.{similar}"
            effects.erasures.append({"words": words, "language": pattern.language, "may_all": requester.may_all})
            return (
                f"{found.remembered} remembered lines, {found.summaries} summary lines and {found.messages} messages"
                " match. The person is shown them and asked to confirm when this answer is sent."
            )

        return ask


def may_edit_all(turn: Turn) -> bool:
    """Return True if the turn's sender may change lines that other people added."""
    return not turn.is_shared or turn.role.covers(Role.ADMIN)


def _record(result: ChatEditResult) -> dict[str, object]:
    """Return the change for the transcript line of the tool's result, from which the answer names it."""
    shown = [[_short(each.old), _short(each.new)] for each in result.changes[:_MOST_SHOWN]]
    return {"versions": list(result.versions), "changes": shown, "count": len(result.changes)}


def _describe(result: ChatEditResult, prefix: str) -> str:
    """Return the changes as text for the model; *prefix* is that of the chat's commands."""
    if not result.changes:
        return "Nothing changed: your memory is already like that."
    undo = " and ".join(f"`{prefix}memory undo {each}`" for each in result.versions)
    lines = ["Changed:", *map(_line, result.changes), *([f"The person can undo it with {undo}."] if undo else [])]
    if any(not each.new for each in result.changes):
        lines.append("Messages and summaries still contain what was removed; `erase` asks the person about those.")
    return "\n".join(lines)


def _line(change: LineChange) -> str:
    if change.old and change.new:
        return f"replaced: {change.old}\n      by: {change.new}"
    return f"removed: {change.old}" if change.old else f"added: {change.new}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
