"""The tool that draws a picture: through litellm's `aimage_generation`, within the caps of the person."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any

import structlog

from agent.llm.chat_model import TokenUsage
from agent.llm.media_model import CallEstimate, MediaModel, UsageAttribution
from agent.tools.tool import NothingHappened, ResultFile, Tool, ToolContext, ToolKind, ToolResult, tool
from gateway.errors import FailureCause, InvalidModelReply, ModelFailed, ModelRateLimited, ModelRefused, ToolFailed
from gateway.events import short_id
from gateway.ports.access import CapReached
from gateway.text import break_addresses

log = structlog.get_logger(__name__)

DRAW = "draw"  # name of the tool, and of the daily cap on its calls
PURPOSE = "picture"
SECONDS = 180.0  # for an answer: good pictures take a minute
MOST_BYTES = 40_000_000  # of an answer, whose picture is in base64
PROMPT_CHARS = 4_000
_MOST_FETCHED = MOST_BYTES * 3 // 4  # as large as one in base64 may be

_OUTPUT_TOKENS = 6_300  # of the largest picture of gpt-image-1, where an answer names none
_CHARACTERS_PER_TOKEN = 4
_KINDS = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "webp"),
    (re.compile(rb"GIF8[79]a"), "gif"),
)


class PictureModel:
    """Draws through litellm's `aimage_generation`."""

    def __init__(
        self,
        model: MediaModel,
        *,
        size: str,
        quality: str = "",
        usd: float | None = None,
        fetch: Callable[[str, int], Awaitable[bytes]],
    ) -> None:
        """Draw pictures of *size* ("1024x1024"; "" = the model's own), each for about *usd* dollars; None = unknown.

        *fetch* loads a picture of at most so many bytes, that a provider answers with the address of. It raises
        ToolFailed.
        """
        self._model = model
        self._options = {name: value for name, value in (("size", size), ("quality", quality)) if value}
        self._fetch = fetch
        self.usd = usd

    async def draw(self, prompt: str, attribution: UsageAttribution) -> tuple[bytes, str]:
        """Return a picture and the ending of its name. Raises CapReached and ModelFailed."""
        tokens = TokenUsage(1 + len(prompt) // _CHARACTERS_PER_TOKEN, _OUTPUT_TOKENS)
        return await self._model.ask(
            "aimage_generation",
            self._read,
            attribution,
            CallEstimate(tokens, self.usd),
            prompt=prompt,
            n=1,
            response_format="b64_json",
            **self._options,
        )

    async def _read(self, answer: Any) -> tuple[bytes, str]:
        found = getattr(answer, "data", None) or [None]
        encoded, address = getattr(found[0], "b64_json", None), getattr(found[0], "url", None)
        try:
            if encoded:
                data = await asyncio.to_thread(base64.b64decode, encoded, validate=True)
            else:
                data = await self._fetch(str(address), _MOST_FETCHED) if address else b""
        except ToolFailed as error:
            raise InvalidModelReply(f"{self._model.name}: the picture's address: {error}") from None
        except binascii.Error:
            data = b""
        for begins, ending in _KINDS:
            if begins.match(data):
                return data, ending
        raise InvalidModelReply(f"{self._model.name}: {len(data)} bytes came that are no picture")


def _describe(prompt: str) -> str:
    """Return the description of a picture: the prompt as one line in which no address is a link."""
    return break_addresses(" ".join(prompt.split()), ())


def build_draw_tool(model: PictureModel) -> Tool:
    """Return `draw` over *model*."""

    async def draw(context: ToolContext, prompt: Annotated[str, "all that is to be seen, and how"]) -> ToolResult:
        """Draw, and send the picture with the answer."""
        prompt = prompt.strip()
        if not prompt or len(prompt) > PROMPT_CHARS:
            raise NothingHappened(f"a prompt has 1 to {PROMPT_CHARS} characters")
        try:
            context.send.require_room()
        except ToolFailed as error:  # before anything is spent
            raise NothingHappened(str(error)) from None
        context.progress(prompt)
        attribution = UsageAttribution(context.turn, context.account, str(context.key))
        try:
            data, ending = await model.draw(prompt, attribution)
        except CapReached:
            raise NothingHappened("not drawn: what this person may spend today is used up") from None
        except ModelFailed as error:
            log.warning("draw.failed", turn=context.turn, error=type(error).__name__, reason=str(error))
            if isinstance(error, ModelRefused):
                is_content = error.cause is FailureCause.FILTERED
                reason = "the provider refuses to draw this" if is_content else "the picture model cannot be used now"
                raise NothingHappened(f"not drawn: {reason}") from None
            if isinstance(error, ModelRateLimited):
                raise NothingHappened("not drawn: the picture model is busy; try again later") from None
            return ToolResult(text="no picture came; it may have been charged all the same", is_error=True)
        name = f"picture-{short_id(context.call_key, 6)}.{ending}"
        return ToolResult(text="The picture is drawn.", files=(ResultFile(name, data, caption=_describe(prompt)),))

    return tool(
        "Draw a picture, if the person wants one. It costs money.",
        name=DRAW,
        kind=ToolKind.SPEND,
        timeout=timedelta(seconds=SECONDS + 60),
        capped_as=DRAW,
        costs=_price_words(model.usd),
    )(draw)


def _price_words(usd: float | None) -> str:
    """Return *usd* as `Tool.costs`; what is cheaper than a tenth of a cent is not shown as free."""
    if usd is None:
        return "?"
    return f"{max(usd, 0.001) if usd else 0:.3f}".rstrip("0").rstrip(".")
