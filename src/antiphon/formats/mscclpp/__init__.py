"""MSCCL++: execution plans for its executor, written and read."""
