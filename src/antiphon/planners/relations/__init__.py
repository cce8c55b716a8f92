"""Plans for custom collectives: shortest paths, with sums formed on the way.

`relay` is the planner; `blocks` plans any relation block by block, `sums` decides which values add up to a wanted one,
`_many_trees` shares data over several trees.
"""
