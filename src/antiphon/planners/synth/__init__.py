"""Synthesize schedules on the latency/bandwidth frontier, with proofs (SCCL, PPoPP 2021; docs/planners/sccl.md).

Reading order: `sccl` (entry point), `problem` and `work` (reduce any collective to a spreading one), `frontier` (which
candidates to try), `candidate_order` and `effort_budget` (how much effort each may take), `auto` (choose an engine),
then the engines: `program` and `linear` (linear program over time and its exact dual), `flow` (integer flows), `sat`
and `cnf` (SAT), `refute` and `elaborate` (checkable proofs of impossibility). `all_forms` searches an allreduce beyond
two halves, by engines `tree_pairs` and `sums`, and bounds it (`tree_prices`); `one_point` decides a single point. On
large machines `starts` begins with plans of other planners, and `improve` improves them. `group` and `canonical` handle
symmetry, `cache` stores answers on disk.
"""
