"""Synthesis of schedules on the frontier of latency and bandwidth, with proofs (docs/planners/sccl.md)."""
