"""Libraries that are compiled here: the engine to preload under MPI programs, and a tuner plugin for NCCL."""

from antiphon.api.running import build

__all__ = ["build"]
