"""Discord's payloads and dialect, pure: what a payload says (`parse`), how an answer looks (`render`, `dialect`)."""

from channels.discord.codec.components import MOST_BUTTONS as MOST_BUTTONS
from channels.discord.codec.components import components as components
from channels.discord.codec.components import rows_left as rows_left
from channels.discord.codec.interactions import first_answer as first_answer
from channels.discord.codec.interactions import read_interaction as read_interaction
from channels.discord.codec.interactions import whole_answer as whole_answer
from channels.discord.codec.parse import FileAddress as FileAddress
from channels.discord.codec.parse import Me as Me
from channels.discord.codec.parse import Place as Place
from channels.discord.codec.parse import Profile as Profile
from channels.discord.codec.parse import changes_nothing as changes_nothing
from channels.discord.codec.parse import is_ours as is_ours
from channels.discord.codec.parse import moment_of as moment_of
from channels.discord.codec.parse import place_beside as place_beside
from channels.discord.codec.parse import place_of as place_of
from channels.discord.codec.parse import read_deletion as read_deletion
from channels.discord.codec.parse import read_message as read_message
from channels.discord.codec.parse import snowflake_at as snowflake_at
from channels.discord.codec.parse import turns_away as turns_away
from channels.discord.codec.render import FILE_LIMIT as FILE_LIMIT
from channels.discord.codec.render import LIMIT as LIMIT
from channels.discord.codec.render import MOST_PARTS as MOST_PARTS
from channels.discord.codec.render import is_the_same as is_the_same
from channels.discord.codec.render import render as render
from channels.discord.codec.render import written as written
