"""Everything that could be wrong, looked at without changing anything, as findings in words.

Files by area: `settings_checks`, `machine_checks`, `gateway_checks` (findings in the status, for `parlour status` too),
`network_checks`. `gateway.commands.doctor` has the list of all of them; alerts to owners are raised
by `gateway.alerts`, and what they say is in the status.
"""
