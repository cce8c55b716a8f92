"""A virtual GPU machine that executes exported files in every order the runtime may take, and checks the result.

`code`: the instructions of the thread blocks of all ranks, which readers of files produce. `execute`: one run in a
random legal order. `order`: which instructions happen before which in every run, and which accesses to one chunk are
unordered (races). `judge`: check a code by all of these. `to_schedule`: convert a correct code to a schedule.
"""
