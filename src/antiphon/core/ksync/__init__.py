"""k-synchronous algorithms (SCCL, section 3): the problem, and checks of the proofs about it."""
