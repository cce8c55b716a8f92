"""Code that several planners use: routes, rows, groups, symmetry, pipelining."""
