"""The harness that all scenarios share.

`contender` says what can be measured, `runner` runs it in interleaved rounds, `child` is the process that each
contender lives in (`process` its handle, `guard` what ends it), `delivery` what is consumed and compared, `limits`
what the machine allows, `summary` the statistics, `report` and `table` the results, `data` the scans,
`command` the command line.
"""
