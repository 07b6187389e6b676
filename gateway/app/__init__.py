"""The composition root, the only package that imports gateway, channels and agent.

`runtime.py` is the gateway as one object, whose subsystems are built by the modules beside it; `composition.py` opens
it over a home, starts its services in order and stops them in reverse.
"""

from gateway.app.composition import open_app as open_app
from gateway.app.composition import run as run
from gateway.app.composition import serve as serve
from gateway.app.context import ExtraChannel as ExtraChannel
from gateway.app.context import ExtraPlugins as ExtraPlugins
from gateway.app.runtime import Runtime as Runtime
