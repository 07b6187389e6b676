"""Structured logs for the operator: one line per event, on standard error, with secrets redacted.

The standard logging of every library passes through the same processors, so redaction has one place.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from gateway.text.redaction import REDACTED as REDACTED
from gateway.text.redaction import SecretRedactor

# Loggers that write addresses, headers or bodies below warnings. Channel plugins silence those of their libraries.
_QUIET = (
    "LiteLLM",
    "aiohttp",
    "anthropic",
    "asyncio",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "openai",
    "urllib3",
    "uvicorn.access",
    "websockets",
)

# Events that any sender can cause, with the number of lines written per minute.
_FLOODS = {
    "socket.accept() out of system resource": 1,
    "Invalid HTTP request received.": 1,
    "Unsupported upgrade request.": 1,
    "opening handshake failed": 1,
    "web.login_refused": 20,
    "owner.wrong_code": 20,
    "strangers.no_lines_left": 1,
    "admission.refused": 20,
}
# Written by each chat, turn or poll that waits for the store: one line says it for all. The ends of event names, since
# each part of the gateway, and each platform, writes its own.
_WAITS_FOR_STORE = (
    *("conversation_not_noted", "heartbeat_failed", "learned_not_stored", "marks_wait", "not_settled", "not_taken"),
    *("not_told", "saved_later", "still_down", "store_down", "wait_for_store", "waits_for_store", "background_failed"),
    "callback_failed",
    *(
        "behind",
        "catch_up_failed",
        "download_failed",
        "drops_later",
        "follows_later",
        "not_caught_up",
        "not_saved",
        "note_not_saved",
        "retention_waits",
    ),
    *("cannot_check", "cannot_sync", "store_unavailable", "window_not_watched", "use_not_recorded", "workspace.failed"),
)
_FLOODS |= dict.fromkeys(_WAITS_FOR_STORE, 3)
_FLOOD_WINDOW = 60.0  # seconds
_LONGEST_FIELD = 500  # characters of a field that is kept in memory

# Fields whose value is a secret whatever it looks like.
_SECRET_FIELDS = frozenset(
    (
        *("api_key", "apikey", "app_token", "authorization", "bot_token", "cookie", "passwd", "password"),
        *("proxy_authorization", "secret", "set_cookie", "signing_secret", "token", "x_api_key"),
    )
)

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Redactor:
    """Replaces the secrets in whatever is logged."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.redact = SecretRedactor(secrets).redact_log

    def clean(self, value: Any) -> Any:
        """Return *value* with every text in it redacted; objects become their redacted repr."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redact(str(key)): self._field(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.clean(item) for item in value]
        return self.redact(str(value))

    def __call__(self, _: Any, __: str, event: EventDict) -> EventDict:
        """Redact one log event; structlog's processor."""
        return {key: self._field(key, value) for key, value in event.items()}

    def _field(self, name: str, value: Any) -> Any:
        if name.lower().replace("-", "_") in _SECRET_FIELDS and value:
            return REDACTED
        return self.clean(value)


class FloodFilter(logging.Filter):
    """Passes so many lines a minute of each event that *limits* names, by its whole name or by its end.

    The next line has the number of those that were left out.
    """

    def __init__(self, limits: Mapping[str, int] = _FLOODS, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limits = limits
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # event -> when its minute began, and lines since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if *record* is to be written."""
        fields = record.msg if isinstance(record.msg, dict) else None
        event = str(fields.get("event") if fields is not None else record.msg).partition("\n")[0]
        limit = self._limits.get(event, self._limits.get(event.rpartition(".")[2]))
        if limit is None:
            return True
        now = self._clock()
        began, lines = self._windows.get(event, (now, 0))
        if now - began >= _FLOOD_WINDOW:
            left_out, began, lines = max(0, lines - limit), now, 0
            if left_out and fields is not None:
                record.msg = {**fields, "left_out": left_out}
            elif left_out:
                record.msg = f"{record.msg}\n{left_out} more such lines were left out"
        self._windows[event] = (began, lines + 1)
        return lines < limit


class LogBuffer:
    """The newest lines of the log in memory, bounded in number and in bytes. May be used by several threads."""

    def __init__(self, *, lines: int = 2_000, size: int = 1_000_000) -> None:
        """Keep at most *lines* lines of together *size* bytes."""
        self._most_lines = lines
        self._most_bytes = size
        self._lines: deque[tuple[int, bytes]] = deque()  # each with its number, as JSON
        self._bytes = 0
        self._number = 0
        self._lock = threading.Lock()

    def __call__(self, _: Any, __: str, event: EventDict) -> EventDict:
        """Keep a redacted event without its traceback; structlog's processor."""
        kept = {name: value for name, value in event.items() if name != "exception"}
        if "exception" in event:
            # The type alone: the text of an unexpected error may quote a person.
            kept["error"] = str(event["exception"]).rstrip().rpartition("\n")[2].partition(":")[0]
        line = json.dumps({name: _shorten(value) for name, value in kept.items()}, default=str).encode()
        with self._lock:
            self._number += 1
            self._lines.append((self._number, line))
            self._bytes += len(line)
            while len(self._lines) > self._most_lines or self._bytes > self._most_bytes:
                self._bytes -= len(self._lines.popleft()[1])
        return event

    def read(self, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Return the kept events with a number above *after*, the oldest first."""
        with self._lock:
            found = [each for each in self._lines if each[0] > after]
        return [(number, json.loads(line)) for number, line in found]


def _shorten(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:_LONGEST_FIELD]


recent_lines = LogBuffer()  # of this process


def escape_controls(text: str) -> str:
    """Return *text* with line breaks, escapes and direction marks written out, so that one event stays one line."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, dict):
        return {escape_controls(str(key)): _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return value


def _escape_event(_: Any, __: str, event: EventDict, *, is_json: bool) -> EventDict:
    # A traceback is many lines: JSON escapes it by itself, and text keeps its lines but no escape codes.
    trace = event.pop("exception", None)
    escaped: EventDict = _escape(dict(event))
    if isinstance(trace, str):
        escaped["exception"] = trace if is_json else "\n".join(map(escape_controls, trace.splitlines()))
    return escaped


def configure_logs(
    *, level: str = "info", form: str = "auto", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> Redactor:
    """Send structlog and standard logging to *stream* (standard error); return the redactor in use.

    *form* is ``json``, ``text``, or ``auto``: text on a terminal, JSON elsewhere. May be called again.
    """
    out = stream or sys.stderr
    is_json = form == "json" or (form == "auto" and not out.isatty())
    redactor = Redactor(secrets)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        redactor,
        partial(_escape_event, is_json=is_json),
        recent_lines,
        structlog.processors.JSONRenderer() if is_json else _as_text,
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    handler.addFilter(FloodFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return redactor


def _as_text(_: Any, __: str, event: EventDict) -> str:
    """One readable line: time, level, event, fields."""
    trace = event.pop("exception", None)
    head = f"{event.pop('timestamp', '')} {str(event.pop('level', '')).upper():7} {event.pop('event', '')}"
    event.pop("logger", None)
    fields = "".join(f" {key}={_format_value(value)}" for key, value in event.items())
    return f"{head}{fields}" + (f"\n{trace}" if trace else "")


def _format_value(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text or not text else text
