"""Measurements: plans beside the library's own collectives, tuning by what was measured, and what models are fitted to.

Under mpiexec or srun all processes but the first get None (docs/bench.md)."""

from antiphon.api.measuring import bench, genmodel, loggp, memory, micro, tune

__all__ = ["bench", "genmodel", "loggp", "memory", "micro", "tune"]
