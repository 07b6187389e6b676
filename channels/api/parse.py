"""Parses requests of OpenAI's protocol into their new message. Pure; invalid requests raise `ApiError`.

Clients resend the whole conversation with each message, but it is stored here. Only the user messages after the last
assistant message are used. The messages before them identify the position in the conversation: another text at the
same position is another version of that message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import ParlourError
from gateway.events import short_id
from gateway.text import sanitize

MODEL = "parlour"
MOST_MESSAGES = 2_000  # of one request
LONGEST_TEXT = 100_000  # characters of a message
LONGEST_INSTRUCTIONS = 16_000  # characters of all system messages together
LONGEST_KEY = 256  # characters of an Idempotency-Key
MOST_IMAGES = 10
LARGEST_IMAGE = 8_000_000  # bytes
_LONGEST_USER = 256  # characters
_CHAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DATA_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,", re.ASCII)
_ID = re.compile(r"([a-z]+)[-_]([A-Za-z0-9_-]{1,400})\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z", re.ASCII)  # of a function or a field of its arguments
_MOST_FIELDS = 10
_SYSTEM = frozenset({"system", "developer"})
_TOOLS = frozenset({"tool", "function"})
_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
# Accepted without effect: they tune a model, and ours is set by the operator. A client is told in a header.
_IGNORED = (
    *("frequency_penalty", "presence_penalty", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "reasoning", "reasoning_effort", "verbosity", "text"),
    *("tools", "functions", "parallel_tool_calls", "response_format", "modalities", "audio", "prediction", "logprobs"),
    *("top_logprobs", "service_tier", "store", "include", "truncation", "background"),
)
# Requests that programs make beside a conversation, such as for a title: how each begins, and what is in it. Each is a
# whole user message without a history. The beginnings are sentences of the programs' own templates, because a message
# that is recognized is not stored: people write "### Task:" themselves, and Open WebUI does above files of a message.
_HISTORY = "<chat_history>"
_STATELESS = (
    ("### Task:\nGenerate a concise", _HISTORY),
    ("### Task:\nGenerate 1-3 broad tags", _HISTORY),
    ("### Task:\nSuggest 3-5 relevant follow-up", _HISTORY),
    ("### Task:\nAnalyze the chat history to determine the necessity of generating search queries", _HISTORY),
    ("### Task:\nGenerate a detailed prompt for an image generation task", _HISTORY),
    ("### Task:\nYou are an autocompletion system.", _HISTORY),
    ("Provide a concise, 5-word-or-less title for the conversation,", "return the title itself"),
    ("Analyze this conversation and provide:", "concise title"),
    ("Please generate a concise title (max 40 characters) for a conversation that starts with", ""),
)


class ApiError(ParlourError):
    """A request is refused. The text names the error and the remedy for the client's developer."""

    def __init__(self, text: str, *, status: int = 400, code: str = "", param: str = "", retry_after: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after  # seconds; 0 = no such header


def busy(text: str, *, seconds: int) -> ApiError:
    """Return the error of a limit: the same request may be sent after *seconds*."""
    return ApiError(text, status=429, code="rate_limit_exceeded", retry_after=seconds)


def unavailable(text: str, *, seconds: int = 5) -> ApiError:
    """Return the error of a temporary fault: the same request may be sent after *seconds*."""
    return ApiError(text, status=503, code="unavailable", retry_after=seconds)


@dataclass(frozen=True, slots=True)
class RequestImage:
    """An image of a message."""

    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFields:
    """The texts that an answer beside a conversation has, such as a title and its language."""

    names: tuple[str, ...]
    function: str = ""  # whose arguments they are; "" = the answer is a JSON object

    def read(self, answer: str, clean: Callable[[str], str]) -> str:
        """Return the JSON object in *answer* with these texts, each cleaned; else one whose title is its last line."""
        begin, end = answer.find("{"), answer.rfind("}")
        try:
            found = json.loads(answer[begin : end + 1])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, Mapping):
            lines = answer.strip().splitlines() or [""]
            found = {"title" if "title" in self.names else self.names[0]: lines[-1].strip()}
        return json.dumps({name: clean(str(found.get(name, ""))) for name in self.names}, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """The new message of one request."""

    text: str
    images: tuple[RequestImage, ...] = ()
    instructions: str = ""  # of system messages
    position: str = ""  # digest of the messages before it; "" if there are none
    digest: str = ""  # of the message
    user: str = ""
    after: str = ""  # id of the response that it follows, of /v1/responses
    is_stream: bool = False
    wants_usage: bool = False  # in a stream
    is_stateless: bool = False  # a title or the like, which belongs to no conversation
    fields: AnswerFields | None = None  # of its answer; None: it is a text
    ignored: tuple[str, ...] = ()  # fields without effect


def read_json(body: bytes) -> Mapping[str, Any]:
    """Return the object of a request body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError("the body is not valid JSON; send one JSON object in UTF-8", code="invalid_json") from None
    if not isinstance(found, Mapping):
        raise ApiError("the body must be a JSON object", code="invalid_json")
    return found


def read_chat(body: Mapping[str, Any]) -> ApiRequest:
    """Read a request of /v1/chat/completions."""
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise ApiError("stream_options must be an object", param="stream_options")
    n = body.get("n")
    if n not in (None, 1):
        raise ApiError("n must be 1: each request has one answer", param="n")
    return _read(body, body.get("messages"), "messages", wants_usage=bool(options.get("include_usage")))


def read_response(body: Mapping[str, Any]) -> ApiRequest:
    """Read a request of /v1/responses."""
    given = body.get("input")
    messages: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else given  # type: ignore[assignment]
    if isinstance(messages, list):
        # Reasoning and calls of a history are no messages.
        messages = [
            each for each in messages if not isinstance(each, Mapping) or each.get("type", "message") == "message"
        ]
        if instructions := body.get("instructions"):
            messages = [{"role": "system", "content": instructions}, *messages]
    after = body.get("previous_response_id") or ""
    if not isinstance(after, str):
        raise ApiError("previous_response_id must be a string", param="previous_response_id")
    if after and body.get("conversation"):
        raise ApiError("send either previous_response_id or conversation", param="conversation")
    if body.get("background"):
        raise ApiError("background is not supported; POST /v1/messages, and poll the answer", param="background")
    conversation = body.get("conversation")
    user = conversation.get("id") if isinstance(conversation, Mapping) else conversation
    return _read({**body, "user": user or body.get("user")}, messages, "input", after=after, wants_usage=True)


def read_message(body: Mapping[str, Any]) -> ApiRequest:
    """Read a request of POST /v1/messages: `text`, and `chat` beside it."""
    unknown = sorted(body.keys() - {"text", "chat"})
    if unknown:
        name = sanitize(unknown[0])[:80]
        raise ApiError(f"unknown field {name!r}; a message has `text` and optionally `chat`", param=name)
    text = body.get("text")
    if not isinstance(text, str):
        raise ApiError("text must be a string", param="text")
    chat = body.get("chat") or ""
    return ApiRequest(text=_checked(text, "text"), user=read_chat_name(chat, "chat") if chat else "")


def read_chat_name(text: object, param: str) -> str:
    """Return the name of a conversation."""
    if not isinstance(text, str) or not _CHAT.match(text):
        raise ApiError(
            f"{param} must be 1 to 64 of A-Z, a-z, 0-9, dots, dashes and underscores, and begin with a letter or digit",
            param=param,
        )
    return text


def read_idempotency_key(text: str) -> str:
    """Return the message id that an Idempotency-Key stands for."""
    if not text or len(text) > LONGEST_KEY:
        raise ApiError(f"Idempotency-Key must have 1 to {LONGEST_KEY} characters", param="Idempotency-Key")
    return f"k{short_id(text, 32)}"


def write_id(kind: str, chat: str, message_id: str) -> str:
    """Return the public id of a message, its completion or response: the conversation and the message in it."""
    separator = "-" if kind == "chatcmpl" else "_"
    text = base64.urlsafe_b64encode(f"{chat} {message_id}".encode()).decode().rstrip("=")
    return f"{kind}{separator}{text}"


def read_id(text: str) -> tuple[str, str] | None:
    """Return conversation and message of a public id; None for any other text."""
    found = _ID.match(text)
    if found is None:
        return None
    try:
        chat, _, message_id = base64.urlsafe_b64decode(f"{found[2]}==").decode("ascii").partition(" ")
    except (binascii.Error, ValueError):
        return None
    return (chat, message_id) if _CHAT.match(chat) and re.fullmatch(r"[A-Za-z0-9._-]{1,128}", message_id) else None


def _read(body: Mapping[str, Any], messages: object, param: str, *, wants_usage: bool, after: str = "") -> ApiRequest:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(f"model is missing; the only one here is {MODEL!r}", param="model")
    if model != MODEL:
        raise ApiError(
            f"the model {model[:80]!r} is not offered; use {MODEL!r}, and send `/model` to choose what is behind it",
            status=404,
            code="model_not_found",
            param="model",
        )
    if not isinstance(messages, list) or not messages:
        raise ApiError(f"{param} must be a list with at least one message", param=param)
    if len(messages) > MOST_MESSAGES:
        raise ApiError(f"{param} has more than {MOST_MESSAGES} messages; leave out the oldest", param=param)
    roles = [_role(each, f"{param}[{n}]") for n, each in enumerate(messages)]
    start = max((n + 1 for n, role in enumerate(roles) if role == "assistant"), default=0)
    tail = [n for n in range(start, len(messages)) if roles[n] not in _SYSTEM]
    if not tail:
        raise ApiError(f"{param} must end with a message of the role user: there is nothing to answer", param=param)
    texts: list[str] = []
    images: list[RequestImage] = []
    for n in tail:
        if roles[n] in _TOOLS:
            raise ApiError(
                "the bot has called no tool of this client, so there is no result to take", param=f"{param}[{n}]"
            )
        _read_content(messages[n].get("content"), f"{param}[{n}].content", texts, images)
    text = _checked("\n\n".join(filter(None, texts)), param, has_images=bool(images))
    history = [n for n in range(start) if roles[n] not in _SYSTEM]
    system = [_plain(messages[n], f"{param}[{n}].content") for n, role in enumerate(roles) if role in _SYSTEM]
    is_stateless = not history and not images and _is_stateless(text)
    fields = _answer_fields(body) if is_stateless and param == "messages" else None
    if body.get("tool_choice") not in (None, "auto", "none") and (fields is None or not fields.function):
        raise ApiError(
            "tool_choice cannot force a tool: the bot has its own tools, and calls none of a client",
            param="tool_choice",
        )
    instructions = "\n\n".join(each.strip() for each in system if each.strip())
    if len(instructions) > LONGEST_INSTRUCTIONS:
        raise ApiError(f"the system messages have more than {LONGEST_INSTRUCTIONS} characters together", param=param)
    return ApiRequest(
        text=text,
        images=tuple(images),
        instructions=sanitize(instructions),
        position=_digest([after])
        if after
        else _digest([[roles[n], _words(messages[n].get("content"))] for n in history])
        if history
        else "",
        digest=_digest([text, *(hashlib.sha256(each.data).hexdigest() for each in images)]),
        user=_user(body.get("user")),
        after=after,
        is_stream=_flag(body, "stream"),
        wants_usage=wants_usage,
        is_stateless=is_stateless,
        fields=fields,
        ignored=tuple(name for name in _IGNORED if not _is_unset(body.get(name))),
    )


def _is_stateless(text: str) -> bool:
    """Return True if a program asks for a title or the like, by the form of its request."""
    return any(text.startswith(beginning) and part in text for beginning, part in _STATELESS)


def _answer_fields(body: Mapping[str, Any]) -> AnswerFields | None:
    """Return the fields of the function that a request forces, or of the JSON object that it wants.

    LibreChat asks for titles like this. None: it asks for neither, or in another form than that.
    """
    choice, wanted = body.get("tool_choice"), body.get("response_format")
    function, schema = "", None
    if isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
        function = str(choice["function"].get("name"))
        tools = body.get("tools")
        listed = [each for each in tools if isinstance(each, Mapping)] if isinstance(tools, list) else []
        given = [each["function"] for each in listed if isinstance(each.get("function"), Mapping)]
        named = [each for each in given if each.get("name") == function]
        schema = named[0].get("parameters") if named and _NAME.match(function) else None
    elif isinstance(wanted, Mapping) and isinstance(wanted.get("json_schema"), Mapping):
        schema = wanted["json_schema"].get("schema")
    names = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(names, Mapping) or not 0 < len(names) <= _MOST_FIELDS or not all(map(_NAME.match, names)):
        return None
    return AnswerFields(names=tuple(names), function=function)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"{name} must be true or false", param=name)
    return bool(value)


def _is_unset(value: object) -> bool:
    return value is None or value is False or value in ([], {})


def _words(content: object) -> str:
    """Return the text of a message of the history, whichever form its client has for it today."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "\n\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _role(message: object, param: str) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ("user", "assistant", *_SYSTEM, *_TOOLS):
        raise ApiError(
            f"{param} must be an object whose role is system, developer, user, assistant or tool", param=param
        )
    return str(role)


def _plain(message: Mapping[str, Any], param: str) -> str:
    texts: list[str] = []
    images: list[RequestImage] = []
    _read_content(message.get("content"), param, texts, images)
    if images:
        raise ApiError("only messages of the role user can have images", param=param)
    return "\n".join(texts)


def _read_content(content: object, param: str, texts: list[str], images: list[RequestImage]) -> None:
    if isinstance(content, str):
        texts.append(content)
        return
    if not isinstance(content, list):
        raise ApiError(f"{param} must be a string or a list of content parts", param=param)
    for n, part in enumerate(content):
        where = f"{param}[{n}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("image_url", "input_image"):
            images.append(_image(part.get("image_url"), where, len(images)))
            if len(images) > MOST_IMAGES:
                raise ApiError(f"a message has at most {MOST_IMAGES} images", param=where)
        else:
            raise ApiError(
                f"{where} must be a part of the type text or image_url; others are not supported", param=where
            )


def _image(value: object, param: str, n: int) -> RequestImage:
    url = value.get("url") if isinstance(value, Mapping) else value
    found = _DATA_URL.match(url[:64]) if isinstance(url, str) else None
    if not isinstance(url, str) or found is None:
        raise ApiError(
            "an image must be a data: URL with base64 of a PNG, JPEG, GIF or WebP; addresses are not fetched",
            code="invalid_image_url",
            param=param,
        )
    if len(url) - found.end() > LARGEST_IMAGE * 4 // 3 + 4:
        raise ApiError(f"an image is larger than {LARGEST_IMAGE // 1_000_000} MB", param=param)
    try:
        data = binascii.a2b_base64(url[found.end() :], strict_mode=True)
    except (binascii.Error, ValueError):
        raise ApiError("the image is not valid base64", code="invalid_image_url", param=param) from None
    if not data:
        raise ApiError("the image is empty", code="invalid_image_url", param=param)
    return RequestImage(f"image-{n + 1}.{_ENDINGS[found[1]]}", found[1], data)


def _user(value: object) -> str:
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or len(value) > _LONGEST_USER:
        raise ApiError(f"user must be a string of at most {_LONGEST_USER} characters", param="user")
    return value if _CHAT.match(value) else f"u-{short_id(value)}"


def _checked(text: str, param: str, *, has_images: bool = False) -> str:
    if len(text) > LONGEST_TEXT:
        raise ApiError(
            f"the message has more than {LONGEST_TEXT} characters", code="string_above_max_length", param=param
        )
    text = sanitize(text).strip()
    if not text and not has_images:
        raise ApiError("the message is empty", param=param)
    return text


def _digest(values: Sequence[object]) -> str:
    encoded = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return short_id(hashlib.sha256(encoded).hexdigest(), 12)
