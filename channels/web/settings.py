"""The page's settings: only the common ones of every channel.

Address and login are settings of the web server (`web.host`, `web.port`, `web.login`, `web.public_url`),
since the dashboard will share them.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from gateway.ports.channel import PlatformTraits


class WebSettings(BaseModel):
    """Settings of this platform alone; the gateway adds the common ones of every channel."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, is_local=True, has_uploads=True)
