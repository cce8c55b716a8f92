"""Execution plans for MSCCL++, written and read."""
