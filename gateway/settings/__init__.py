"""The settings: every knob, read once in the CLI, every mistake one line that says how to mend it."""

from gateway.settings.blocks import Block as Block
from gateway.settings.blocks import Kinds as Kinds
from gateway.settings.load import Report as Report
from gateway.settings.load import check_settings as check_settings
from gateway.settings.load import home_of as home_of
from gateway.settings.load import load_settings as load_settings
from gateway.settings.load import secret_values as secret_values
from gateway.settings.model import Settings as Settings
