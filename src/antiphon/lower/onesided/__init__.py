"""From a program to puts, signals and waits: what runtimes do whose ranks write into each other's memory.

`form`: steps, and what messages move. `streams`: what can go on side by side, and which messages need a credit.
`switched`: what switches do of a program. `steps`: what every rank does, in order, in every stream; `packets`: the same
where data says by itself that it has come.
"""
