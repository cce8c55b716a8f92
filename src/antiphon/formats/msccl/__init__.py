"""MSCCL XML: what thread blocks of GPUs do, for MSCCL's executor and RCCL.

`write` makes files; `read` reads any, and `code` tells what is in them as the executor does it."""
