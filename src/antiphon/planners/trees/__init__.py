"""Packed spanning trees: exactly optimal (`trees`), of bounded depth (`shallow`), as published (`blink`).

Engines that pack trees: `forest` with `splitting` (reach the cut bound), `columns` with `master`, `pricing` and
`exact_solve` (linear program over trees), `portions` (linear program over cuts), `spanning` (undirected trees),
`fewest` (fewest trees), `bounded` (depth limit). `direct_links` reads machines without switches. `rounding` and
`to_schedule` make rows of trees. `blink_packing` holds the parts of Blink.
"""
