"""The tables of our engine for GPUs written out as a program of its own."""
