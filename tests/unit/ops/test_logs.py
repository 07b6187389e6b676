"""No secret, no line break and no escape code gets into a log, whoever wrote it."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog

from gateway.access.refusal_log import RefusalLog
from gateway.admission import Rejected, RejectionReason
from gateway.events import InboundMessage, Sender, SessionKey
from gateway.logs import REDACTED, FloodFilter, LogBuffer, Redactor, configure_logs, recent_lines
from tests.fakes.clock import EPOCH

CANARY = "canary/S3cret+word="
SHAPED = [
    "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1",
    "https://api.telegram.org/bot123:short_one/getUpdates",
    "xoxb-123456789012-abcdefghij",
    "xapp-1-A0123-456-abcdef",
    "sk-proj-abcdefghijklmnopqrstuvwxyz",
    "MTIzNDU2Nzg5MDEyMzQ1Njc4.GabcdE.abcdefghijklmnopqrstuvwxyz0",
    "Authorization: Bearer abcdefghijklmnopqrstuvwxyz",
    "{'Authorization': 'Basic dXNlcjpwYXNzd29yZDE='}",
    "postgresql://user:pass-word@host/db",
    "GET /x?token=abcdefgh&y=1",
    "PATCH https://discord.com/api/v10/webhooks/1042000000000000001/aW50ZXJhY3Rpb24tMTIz/messages/@original",
    "POST https://discord.com/api/v10/interactions/1573887251060883457/aW50ZXJhY3Rpb24tMTIz/callback",
]
HIDDEN = [
    *("AAHdqTcv", "short_one", "abcdefghij", "abcdef", "abcdefghijkl"),
    *("GabcdE", "abcdefghij", "dXNlcjpw", "pass-word", "abcdefgh", "aW50ZXJh", "aW50ZXJh"),
]


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Logs into memory, and everything as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    yield stream
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_known_secret_is_in_no_line(written: io.StringIO, form: str) -> None:
    """Fields, nested values, keys, exceptions and the standard library's messages: the canary is in none of them."""
    configure_logs(form=form, secrets=[CANARY], stream=written)
    log = structlog.get_logger("test")
    log.info(
        "a.b", url=f"https://x/?q={quote(CANARY, safe='')}", nested={"k": [CANARY, {CANARY: 1}]}, obj=ValueError(CANARY)
    )
    try:
        int(CANARY)  # quoted by the exception
    except ValueError:
        log.exception("a.c")
        logging.getLogger("some.library").exception("with %s", CANARY)
    text = written.getvalue()
    assert text.count(REDACTED) >= 6
    assert CANARY not in text
    assert quote(CANARY, safe="") not in text


def test_the_password_in_an_address_is_a_secret_of_its_own() -> None:
    """A proxy's or a database's: as it is written, and as it is meant, wherever a library shows it alone."""
    redactor = Redactor(["socks5h://ann:canary%40word@proxy.example:1080", "http://[broken", "https://no.password/"])
    assert redactor.redact("sent canary%40word, or canary@word, of ann") == f"sent {REDACTED}, or {REDACTED}, of ann"


@pytest.mark.parametrize(("line", "hidden"), list(zip(SHAPED, HIDDEN, strict=True)))
def test_what_has_the_shape_of_a_secret_is_redacted(line: str, hidden: str) -> None:
    """Tokens and headers nobody told us of are recognised by their shape."""
    assert hidden in line
    assert hidden not in Redactor().redact(line)


def test_ordinary_words_stay(written: io.StringIO) -> None:
    """Numbers of tokens, keys of sessions and turn ids are what logs are for."""
    configure_logs(form="json", secrets=["a"], stream=written)
    structlog.get_logger("test").info(
        "turn.done", tokens_in=5, key="telegram:-1001234", turn="tabcdefghijklmnop", n=None
    )
    line = json.loads(written.getvalue())
    assert (line["tokens_in"], line["key"], line["turn"], line["n"]) == (
        5,
        "telegram:-1001234",
        "tabcdefghijklmnop",
        None,
    )


@pytest.mark.parametrize("field", ["token", "api_key", "Authorization", "password", "X-Api-Key"])
def test_some_fields_are_secret_whatever_they_hold(field: str) -> None:
    """A field of that name is redacted without looking at it."""
    assert Redactor().clean({field: "short"}) == {field: REDACTED}


@pytest.mark.parametrize("form", ["json", "text"])
def test_one_event_is_one_line(written: io.StringIO, form: str) -> None:
    """Attack 86: line breaks, escapes and direction marks in a name are written out."""
    configure_logs(form=form, stream=written)
    name = "Eve\r\n2026 INFO forged\x1b[2J\u2028\u202e\x9b"
    structlog.get_logger("test").info("joined", name=name)
    logging.getLogger("library").warning("joined %s", name)
    lines = written.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_libraries_that_tell_addresses_are_quiet(written: io.StringIO) -> None:
    """An HTTP library (httpx) logs every address at INFO, and Telegram's holds the token."""
    configure_logs(level="debug", form="json", stream=written)
    for name in ("httpx", "httpcore.http11", "aiohttp.access", "openai._base_client", "LiteLLM"):
        logging.getLogger(name).info("HTTP Request: POST https://api.telegram.org/bot1:x")
    assert written.getvalue() == ""
    logging.getLogger("httpx").warning("a warning passes")
    assert "a warning passes" in written.getvalue()


def test_the_level_holds_for_everybody(written: io.StringIO) -> None:
    """log.level is one switch for our own lines and the libraries'."""
    configure_logs(level="warning", form="json", stream=written)
    structlog.get_logger("test").info("quiet")
    logging.getLogger("library").info("quiet")
    assert written.getvalue() == ""


def test_what_anybody_can_cause_is_written_a_few_times_a_minute() -> None:
    """A flood of one event is a few lines, the next minute says how many were left out; nothing else is bounded."""
    now = 0.0
    passes = FloodFilter({"accept failed": 1, "web.login_refused": 2}, clock=lambda: now)

    def lines(message: object, times: int) -> list[str]:
        records = [logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (), None) for _ in range(times)]
        return [str(record.msg) for record in records if passes.filter(record)]

    assert lines("accept failed\nsocket: 17", 1_000) == ["accept failed\nsocket: 17"]
    assert len(lines({"event": "web.login_refused"}, 1_000)) == 2
    assert len(lines({"event": "web.login"}, 1_000)) == 1_000
    now = 61.0
    assert lines("accept failed\nsocket: 17", 5) == ["accept failed\nsocket: 17\n999 more such lines were left out"]
    assert lines({"event": "web.login_refused"}, 5)[0] == str({"event": "web.login_refused", "left_out": 998})


def lines_about_the_store() -> set[str]:
    """Return the events that the program logs where it catches StoreUnavailable."""
    events = set()
    for package in ("agent", "channels", "gateway"):
        for path in (Path(__file__).resolve().parents[3] / package).rglob("*.py"):
            for handler in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(handler, ast.ExceptHandler) and "StoreUnavailable" in ast.unparse(
                    handler.type or handler
                ):
                    found = re.findall(r"log\.\w+\('([a-z_.]+)'", ast.unparse(handler))
                    events |= set(found)
    return events


def test_a_store_that_is_away_writes_few_lines_whoever_waits_for_it() -> None:
    """Each chat, turn, poll and job waits for itself: of no event are there more than three lines a minute."""
    events = lines_about_the_store()
    assert len(events) > 20
    passes = FloodFilter()
    for event in events:
        records = [logging.LogRecord("x", logging.ERROR, "", 0, {"event": event}, (), None) for _ in range(100)]
        assert sum(map(passes.filter, records)) <= 3, event


def test_a_thousand_strangers_are_twenty_lines(written: io.StringIO) -> None:
    """Each refusal is kept for `parlour why`; the log tells the first of each minute."""
    configure_logs(form="json", stream=written)
    refusals = RefusalLog()
    for n in range(1_000):
        message = InboundMessage(
            key=SessionKey("telegram", str(n)), message_id="1", sender=Sender(id=str(n)), text="x", sent_at=EPOCH
        )
        refusals.note(message, Rejected(reason=RejectionReason.STRANGER, would_admit="an entry"), EPOCH)
    assert written.getvalue().count("admission.refused") == 20
    assert len(refusals.recent()) == 200


def test_the_lines_in_memory_are_redacted_and_have_no_words_of_an_error(written: io.StringIO) -> None:
    """A secret is cut out as in the log; of an exception its type remains."""
    configure_logs(form="json", secrets=[CANARY], stream=written)
    newest = max((number for number, _ in recent_lines.read()), default=0)
    error = ValueError("what a person said")
    structlog.get_logger("test.memory").error("a.failed", exc_info=error, url=f"https://x/?q={CANARY}", token="t0ken")
    ((_, line),) = recent_lines.read(newest)
    assert (line["event"], line["level"], line["logger"]) == ("a.failed", "error", "test.memory")
    assert (line["error"], line["token"]) == ("ValueError", REDACTED)
    assert CANARY not in str(line)
    assert "what a person said" not in str(line)


def test_the_lines_in_memory_are_bounded_in_number_and_bytes() -> None:
    """The oldest go first; one huge field is cut; numbers go on, so that a reader misses none that is kept."""
    few = LogBuffer(lines=3)
    for number in range(5):
        few(None, "", {"event": str(number)})
    assert [(number, line["event"]) for number, line in few.read()] == [(3, "2"), (4, "3"), (5, "4")]
    assert [number for number, _ in few.read(after=4)] == [5]
    small = LogBuffer(size=2_000)
    for _ in range(10):
        small(None, "", {"event": "x" * 100_000})
    kept = [line["event"] for _, line in small.read()]
    assert kept == ["x" * 500] * 3
