"""Optimal flows for collectives that only move data (gather, scatter, alltoall).

`wants` lists what must flow, `program` solves the linear program, `descent` approximates it on large machines, `paths`
decomposes flows into paths with rounded shares, `path_schedule` builds the schedule, `flows` is the planner.
"""
