"""Numbers of ranks taken apart: k-ring, recursive multiplying."""
