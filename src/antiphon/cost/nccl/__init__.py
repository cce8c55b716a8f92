"""Estimate NCCL and RCCL: the cost of a call, fitted to published measurements, and the choice that NCCL would make."""
