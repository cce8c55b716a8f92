"""Packed spanning trees: exactly optimal (`trees`), of bounded depth (`shallow`), as published (`blink`).

Engines that pack trees: `forest` with `splitting` (reach the cut bound), `columns` with `pricing` (linear program),
`portions` (linear program over cuts), `spanning` (undirected trees), `fewest` (fewest trees), `bounded` (depth limit).
`to_schedule` makes rows of trees. `blink_packing` holds the parts of Blink.
"""
