"""Programs run and measured: one case, one loop, one form of row, on every runtime."""
