"""Optimal flows for collectives that only move data (gather, scatter, alltoall)."""
