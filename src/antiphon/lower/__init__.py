"""Back ends: a plan as files that something else runs. One file per back end, one line each in table.py."""
