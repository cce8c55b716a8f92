"""MSCCL XML, run by MSCCL's executor and by RCCL.

`write` makes files; `read` reads any, and `code` tells what is in them as the executor does it."""
