"""The engine for GPUs: one kernel for CUDA, HIP and threads of a processor."""
