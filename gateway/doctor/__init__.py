"""`parlour doctor`: everything that could be wrong, looked at without changing anything, in words.

`machine` sees this machine alone, `traces` what went wrong lately, `platforms` asks the platforms themselves.
"""

from gateway.doctor.findings import DoctorFinding as DoctorFinding
from gateway.doctor.findings import FindingLevel as FindingLevel
from gateway.doctor.incident_checks import LATELY as LATELY
from gateway.doctor.incident_checks import check_incidents as check_incidents
from gateway.doctor.incident_checks import last_answer as last_answer
from gateway.doctor.machine_checks import check_machine as check_machine
from gateway.doctor.monitoring_checks import check_monitoring as check_monitoring
from gateway.doctor.platform_checks import check_platforms as check_platforms
from gateway.doctor.platform_checks import check_proxy as check_proxy
from gateway.doctor.platform_checks import from_platform as from_platform
from gateway.doctor.platform_checks import installed_setups as installed_setups
from gateway.doctor.platform_checks import verify as verify
from gateway.doctor.store_checks import check_objects as check_objects
from gateway.doctor.store_checks import check_server as check_server
from gateway.doctor.web_checks import check_addresses as check_addresses
