"""From a program to puts, signals and waits: what runtimes do whose ranks write into each other's memory.

`form`: the steps. `messages`: sends met with their receives, and cut into moves. `credits`: who must say that a place
is free. `streams`: what can go on side by side. `steps`: what every rank does, in order, in every stream; `packets`:
the same where data says by itself that it has come. `line`: what both are made of.
"""
