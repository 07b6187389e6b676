"""`parlour doctor`: everything that could be wrong, looked at without changing anything, in words.

`machine` sees this machine alone, `traces` what went wrong lately, `platforms` asks the platforms themselves.
"""

from gateway.doctor.findings import Finding as Finding
from gateway.doctor.findings import Level as Level
from gateway.doctor.machine import examine as examine
from gateway.doctor.platforms import ask_platforms as ask_platforms
from gateway.doctor.platforms import ask_proxy as ask_proxy
from gateway.doctor.platforms import from_platform as from_platform
from gateway.doctor.platforms import verify as verify
from gateway.doctor.platforms import with_proxy as with_proxy
from gateway.doctor.traces import LATELY as LATELY
from gateway.doctor.traces import last_answer as last_answer
from gateway.doctor.traces import traces as traces
