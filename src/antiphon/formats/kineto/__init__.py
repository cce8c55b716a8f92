"""What PyTorch's profiler (Kineto) records: computation and collectives of a rank, on processors and on GPUs."""
