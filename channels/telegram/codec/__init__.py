"""Telegram's shapes, pure: updates into `InboundMessage`, Markdown into texts with entities."""

from channels.telegram.codec.content import FILE_SCHEME as FILE_SCHEME
from channels.telegram.codec.parse import Account as Account
from channels.telegram.codec.parse import event_id as event_id
from channels.telegram.codec.parse import is_arrival as is_arrival
from channels.telegram.codec.parse import origin_of as origin_of
from channels.telegram.codec.parse import parse as parse
from channels.telegram.codec.parse import query_of as query_of
from channels.telegram.codec.parse import rows_left as rows_left
from channels.telegram.codec.places import moved as moved
from channels.telegram.codec.places import place_of as place_of
from channels.telegram.codec.places import rights_changed as rights_changed
from channels.telegram.codec.render import LIMIT as LIMIT
from channels.telegram.codec.render import MAX_PARTS as MAX_PARTS
from channels.telegram.codec.render import Outgoing as Outgoing
from channels.telegram.codec.render import outgoing as outgoing
from channels.telegram.codec.render import render as render
