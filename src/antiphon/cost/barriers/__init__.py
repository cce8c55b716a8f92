"""Models with a barrier between steps (alpha-beta, SCCL), and the critical path without barriers."""
