"""Runs plans: here, under MPI, under PyTorch, on the emulated cluster."""
