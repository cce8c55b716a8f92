"""What NCCL and RCCL take: published measurements, what a call costs on them, and what NCCL would choose."""
