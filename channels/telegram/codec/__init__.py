"""Telegram's shapes, pure: updates into `InboundMessage`, Markdown into texts with entities."""

from channels.telegram.codec.content import FILE_SCHEME as FILE_SCHEME
from channels.telegram.codec.parse import TelegramBotIdentity as TelegramBotIdentity
from channels.telegram.codec.parse import callback_query_id as callback_query_id
from channels.telegram.codec.parse import event_id as event_id
from channels.telegram.codec.parse import is_bot_added as is_bot_added
from channels.telegram.codec.parse import origin_of as origin_of
from channels.telegram.codec.parse import parse_membership as parse_membership
from channels.telegram.codec.parse import parse_migration as parse_migration
from channels.telegram.codec.parse import parse_update as parse_update
from channels.telegram.codec.parse import remaining_rows as remaining_rows
from channels.telegram.codec.parse import rights_changed as rights_changed
from channels.telegram.codec.render import LIMIT as LIMIT
from channels.telegram.codec.render import MAX_PARTS as MAX_PARTS
from channels.telegram.codec.render import OutgoingText as OutgoingText
from channels.telegram.codec.render import build_outgoing as build_outgoing
from channels.telegram.codec.render import render as render
