"""The composition root, the only package that imports gateway, channels and agent.

`composition.py` opens every subsystem, each from its own module; `app.py` is the result as one object; `run.py`
starts its services in order and stops them in reverse.
"""

from gateway.app.app import GatewayApp as GatewayApp
from gateway.app.composition import build_operations as build_operations
from gateway.app.composition import open_app as open_app
from gateway.app.context import ExtraChannel as ExtraChannel
from gateway.app.context import ExtraPlugins as ExtraPlugins
from gateway.app.run import run as run
from gateway.app.run import serve as serve
