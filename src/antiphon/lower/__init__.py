"""From a schedule to a program, and from a program to the form that each GPU runtime takes (docs/program.md).

`lowering` makes programs, in three stages: `rows` (where values lie), `moves` (what crosses, waits and is combined) and
operations in their order. A program pairs its sends with its receives (`Program.pairs`); `blocks/` makes thread blocks
of it, `onesided/` puts and signals, and `device/` the tables of our own kernel from these. `machine/` executes files
that were written for GPU runtimes.
"""
