"""The composition root, the only package that imports gateway, channels and agent.

`runtime.py` is the gateway as one object, whose subsystems are built by the modules beside it; `composition.py` opens
it over a home, starts its services in order and stops them in reverse.
"""
