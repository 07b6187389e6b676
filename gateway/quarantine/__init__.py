"""Events that cannot be read, or that killed us: set aside as files, and passed over from then on."""

from gateway.quarantine.quarantine import CALM as CALM
from gateway.quarantine.quarantine import KEEP as KEEP
from gateway.quarantine.quarantine import Quarantine as Quarantine
from gateway.quarantine.quarantine_folder import count as count
from gateway.quarantine.quarantine_folder import list_events as list_events
