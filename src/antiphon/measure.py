"""Measurements: plans beside the library's own collectives, tuning by measurements, data for fitting models, and
logs of other benchmarks.

Under mpiexec or srun all processes but the first get None (docs/bench.md)."""

from antiphon.api.benchmark_logs import check_log, compare_logs
from antiphon.api.measuring import bench, genmodel, loggp, memory, micro, tune
from antiphon.api.watching import watch

__all__ = ["bench", "check_log", "compare_logs", "genmodel", "loggp", "memory", "micro", "tune", "watch"]
