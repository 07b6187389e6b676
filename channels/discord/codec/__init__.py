"""Pure conversion of Discord's payloads (`parse`, `interactions`) and of answers (`render`, `markup`, `buttons`)."""

from channels.discord.codec.buttons import MOST_BUTTONS as MOST_BUTTONS
from channels.discord.codec.buttons import remaining_rows as remaining_rows
from channels.discord.codec.buttons import render_buttons as render_buttons
from channels.discord.codec.content import snapshots as snapshots
from channels.discord.codec.interactions import final_response as final_response
from channels.discord.codec.interactions import initial_response as initial_response
from channels.discord.codec.interactions import parse_interaction as parse_interaction
from channels.discord.codec.parse import DiscordBotIdentity as DiscordBotIdentity
from channels.discord.codec.parse import DiscordChat as DiscordChat
from channels.discord.codec.parse import DiscordFileRef as DiscordFileRef
from channels.discord.codec.parse import GuildProfile as GuildProfile
from channels.discord.codec.parse import changes_nothing as changes_nothing
from channels.discord.codec.parse import is_ours as is_ours
from channels.discord.codec.parse import mentions_others as mentions_others
from channels.discord.codec.parse import moment_of as moment_of
from channels.discord.codec.parse import parse_message as parse_message
from channels.discord.codec.parse import place_beside as place_beside
from channels.discord.codec.parse import place_of as place_of
from channels.discord.codec.parse import read_deletion as read_deletion
from channels.discord.codec.parse import snowflake_at as snowflake_at
from channels.discord.codec.render import FILE_LIMIT as FILE_LIMIT
from channels.discord.codec.render import LIMIT as LIMIT
from channels.discord.codec.render import MOST_PARTS as MOST_PARTS
from channels.discord.codec.render import matches_part as matches_part
from channels.discord.codec.render import message_content as message_content
from channels.discord.codec.render import render as render
