"""From a program to puts, signals and waits on other ranks' memory (MSCCL++).

`form`: the steps of ranks, and the data that messages move. `streams`: which operations can run at the same time, and
which messages need a credit (the receiver's signal that its memory is free). `switched`: which operations switches can
perform. `steps`: the steps of every rank in every stream. `packets`: the same with packets, data with flags that show
when they have arrived.
"""
