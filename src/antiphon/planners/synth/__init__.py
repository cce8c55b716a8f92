"""Synthesis of schedules on the latency-bandwidth frontier, with proofs (docs/planners/sccl.md)."""
