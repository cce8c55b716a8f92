"""From a schedule to its programs, and from a program to what GPU runtimes take (docs/program.md).

`lowering` makes programs, in three stages: `rows` (where values lie), `moves` (what crosses, waits and is combined) and
operations in their order. A program pairs its sends with its receives (`Program.pairs`); `blocks/` makes thread blocks
of it, `onesided/` puts and signals, and `device/` the tables of our own kernel from these. `machine/` executes files
that were written for GPU runtimes.
"""
