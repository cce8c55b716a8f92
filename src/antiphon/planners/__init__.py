"""The ways to plan: one file (or folder) per method, one line each in table.py.

A planner is a function plan(topology, collective, *, nbytes, profile, budget, seed, **options) that yields
schedules. Whoever calls it verifies every schedule it yields.
"""
