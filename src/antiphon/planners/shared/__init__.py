"""What planners of several rooms use: rows, routes, places, digits, groups."""
