"""Planners: one file or folder per method.

A planner is a function plan(request, **options) that yields schedules of what the request (antiphon.core.request) asks
for. The caller verifies every schedule it yields.
"""

from antiphon.deprecations import stay_callable

stay_callable(__name__)
