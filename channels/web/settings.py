"""The page's settings: it has none of its own.

Where the page is served and who must log in is the web server's affair (`web.host`, `web.port`,
`web.login`, `web.public_url`), since the dashboard stands behind the same door.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from gateway.ports import PlatformTraits


class WebSettings(BaseModel):
    """What only this kind of channel can be told; the common part of a block is added by the gateway."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, is_local=True, has_uploads=True)
