"""Mixed-radix algorithms: k-ring and recursive multiplying ("parameterized collectives").

`kring` with `lanes`; `recmult` and `permrecmult` with `mixed` (arithmetic of mixed-radix numbers and the rounds).
"""
