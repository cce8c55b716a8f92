"""GenTree: plans for trees of switches (docs/planners/switches.md#gentree).

`graph` reads the machine as a tree, `tree` roots it, `cost` prices plans by GenModel, `choose` selects a plan type per
switch (Algorithm 2), `assign` and `plan_rows` assign blocks to servers and build the rows (Algorithm 1), `types` has
the plan types, `gentree` is the planner.
"""
