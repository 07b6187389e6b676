"""The settings, read once by the CLI. Each error is one line with its remedy."""

from gateway.settings.channel_blocks import ChannelSettings as ChannelSettings
from gateway.settings.channel_blocks import InstalledPlugins as InstalledPlugins
from gateway.settings.load import SettingsReport as SettingsReport
from gateway.settings.load import check_settings as check_settings
from gateway.settings.load import home_of as home_of
from gateway.settings.load import load_settings as load_settings
from gateway.settings.load import secret_values as secret_values
from gateway.settings.settings_model import Settings as Settings
