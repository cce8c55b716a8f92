"""k-synchronous algorithms (SCCL, section 3): the problem, and proofs of what no algorithm of so many steps can do."""
