"""Mixed-radix algorithms: k-ring and recursive multiplying."""
