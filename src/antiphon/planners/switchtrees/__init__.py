"""GenTree: plans for trees of switches (docs/planners/switches.md#gentree).

`graph` reads the machine as a tree, and `tree` roots it. `cost` prices plans by GenModel, and `choose` selects a plan
type per switch (Algorithm 2; `types` has them). `assign` and `plan_rows` assign blocks to servers and build the rows
(Algorithm 1). `gentree` is the planner.
"""
