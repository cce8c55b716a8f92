"""Optimal flows for collectives that only move data (gather, scatter, alltoall).

`demands` lists what must flow, `linear_program` solves the linear program, `descent` approximates it on large machines,
`paths` decomposes flows into paths with rounded shares, `path_schedule` builds the schedule, `flows` is the planner.
"""
