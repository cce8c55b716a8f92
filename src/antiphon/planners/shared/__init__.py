"""Code that several planners use: routes, rows, groups, symmetry, trees, pipelining.

`routing` and `reach` find paths between ranks, `rows` makes schedules from arrays of rows, `groups` handles nested
groups of ranks, `orbits` finds symmetries. `tree_schedules` makes schedules of packed trees; `tree_repair` reattaches
their branches after failures, on few of very many trees (`thin_trees`). Pipelining for a message size: `pipelining`
chooses between equal pieces (`end_sizes` adds smaller ones at both ends), uneven parts (`uneven`, `start_program`) and
a start time per hop (`hop_timing`).
"""
