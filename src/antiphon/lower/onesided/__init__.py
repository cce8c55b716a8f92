"""From a program to puts, signals and waits on other ranks' memory (MSCCL++).

`form`: steps, and what messages move. `streams`: what can go on side by side, and which messages need a credit.
`switched`: what switches do of a program. `steps`: what every rank does, in order, in every stream; `packets`: the same
where data says by itself that it has come.
"""
