"""The GPU engine: one kernel for CUDA, HIP and CPU threads."""
