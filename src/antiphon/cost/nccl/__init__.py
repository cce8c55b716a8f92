"""Estimates of NCCL and RCCL: the cost of a call, and the algorithm that the library would choose."""
