"""Slack's payloads in and Slack's dialect out: pure, no I/O and no library."""

from channels.slack.codec.attachments import download_url as download_url
from channels.slack.codec.attachments import is_file_id as is_file_id
from channels.slack.codec.attachments import shared_at as shared_at
from channels.slack.codec.buttons import SlackButtonPress as SlackButtonPress
from channels.slack.codec.envelope import chat_of as chat_of
from channels.slack.codec.envelope import event_of as event_of
from channels.slack.codec.envelope import origin_of as origin_of
from channels.slack.codec.envelope import raw_of as raw_of
from channels.slack.codec.envelope import user_of as user_of
from channels.slack.codec.parse import ParsedEvent as ParsedEvent
from channels.slack.codec.parse import SlackBotIdentity as SlackBotIdentity
from channels.slack.codec.parse import SlackProfile as SlackProfile
from channels.slack.codec.parse import build_message as build_message
from channels.slack.codec.parse import changed_user as changed_user
from channels.slack.codec.parse import moment as moment
from channels.slack.codec.parse import parse_event as parse_event
from channels.slack.codec.parse import parse_membership as parse_membership
from channels.slack.codec.render import LIMIT as LIMIT
from channels.slack.codec.render import LINE as LINE
from channels.slack.codec.render import escape as escape
from channels.slack.codec.render import mentions as mentions
from channels.slack.codec.render import message_body as message_body
from channels.slack.codec.render import metadata as metadata
from channels.slack.codec.render import part_of as part_of
from channels.slack.codec.render import render as render
from channels.slack.codec.render import render_markup as render_markup
