"""Everything that could be wrong, looked at without changing anything, as findings in words.

`HealthCheck` (`checks`) is declared once for each thing, with what its readers need: the doctor, `parlour status`, the
console, /status, /readyz and the alerts. `gateway_checks` has those of a gateway, `home_checks` and `network_checks`
those that the doctor alone makes; `doctor.CHECKS` is the list of all.
"""
