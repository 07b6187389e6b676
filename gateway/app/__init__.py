"""The composition root: the only place that sees gateway, channels and agent at once.

`app.py` is all of it as a whole, `build.py` makes every room, `channels.py` the doors, `run.py` starts them in order
and stops them in reverse.
"""

from gateway.app.app import GatewayApp as GatewayApp
from gateway.app.build import open_app as open_app
from gateway.app.channels import ExtraChannel as ExtraChannel
from gateway.app.channels import ExtraPlugins as ExtraPlugins
from gateway.app.run import run as run
from gateway.app.run import serve as serve
