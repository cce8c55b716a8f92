"""Code that several planners use: routes, rows, groups, symmetry, pipelining.

`routing` and `reach` find paths between ranks, `rows` makes schedules from arrays of rows, `groups` handles nested
groups of ranks, `orbits` finds symmetries. Pipelining for a message size: `pipelining` chooses between equal pieces
(`end_sizes` adds smaller ones at both ends), uneven parts (`uneven`, `start_program`) and a start time per hop
(`hop_timing`).
"""
