"""How long it takes from a manifest to agents that are ready: taken apart, by watches, in either home.

`world` applies and watches, `timeline` says which change is which moment, `command` prints the table.
"""
