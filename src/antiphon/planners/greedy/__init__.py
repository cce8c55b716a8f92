"""The planner `greedy`: step by step, send the missing data that helps most.

`greedy` is the planner, `search` tries numbers of parts, paces and seeds, `spread` and `moves` are the two simulations,
`hops`, `islands`, `tasks`, `chunk_routes` and `bits` are their data.
"""
