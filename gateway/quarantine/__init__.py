"""Events that cannot be read, or that killed us: set aside as files, and passed over from then on."""

from gateway.quarantine.folder import SetAside as SetAside
from gateway.quarantine.folder import count as count
from gateway.quarantine.folder import look as look
from gateway.quarantine.keeper import ATTEMPTS as ATTEMPTS
from gateway.quarantine.keeper import CALM as CALM
from gateway.quarantine.keeper import KEEP as KEEP
from gateway.quarantine.keeper import Quarantine as Quarantine
