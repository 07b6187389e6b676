"""Slack's payloads in and Slack's dialect out: pure, no I/O and no library."""

from channels.slack.codec.buttons import Press as Press
from channels.slack.codec.envelope import chat_of as chat_of
from channels.slack.codec.envelope import event_of as event_of
from channels.slack.codec.envelope import origin_of as origin_of
from channels.slack.codec.envelope import raw_of as raw_of
from channels.slack.codec.envelope import user_of as user_of
from channels.slack.codec.files import address as address
from channels.slack.codec.files import is_id as is_id
from channels.slack.codec.files import shared_at as shared_at
from channels.slack.codec.inbound import Heard as Heard
from channels.slack.codec.inbound import Me as Me
from channels.slack.codec.inbound import Person as Person
from channels.slack.codec.inbound import compose as compose
from channels.slack.codec.inbound import moment as moment
from channels.slack.codec.inbound import read as read
from channels.slack.codec.mrkdwn import escape as escape
from channels.slack.codec.mrkdwn import mrkdwn as mrkdwn
from channels.slack.codec.outbound import LIMIT as LIMIT
from channels.slack.codec.outbound import LINE as LINE
from channels.slack.codec.outbound import body as body
from channels.slack.codec.outbound import metadata as metadata
from channels.slack.codec.outbound import part_of as part_of
from channels.slack.codec.outbound import render as render
from channels.slack.codec.places import changed_user as changed_user
from channels.slack.codec.places import place_of as place_of
from channels.slack.codec.text import mentions as mentions
