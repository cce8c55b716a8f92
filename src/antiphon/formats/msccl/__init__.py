"""MSCCL XML, run by MSCCL's executor and by RCCL.

`write` makes files; `read` reads any file, and `code` translates it to a code as the executor runs it."""
