"""Plans with multicast and reduction in switches (NVLS, SHARP) (docs/schedule.md).

`tree` finds trees of capable switches, `schedule_builder` collects rows through them; `nvls`, `sharp` and `nvls_tree`
are the planners, `ring_mixture` uses the links that joints leave idle.
"""
