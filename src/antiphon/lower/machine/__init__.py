"""A virtual GPU machine that executes exported files in every order the runtime may take, and checks the result.

`code`: what blocks of all ranks do, as readers of files hand it over. `execute`: one run in a random legal order.
`order`: what must come before what, and which accesses to one chunk nothing orders. `waves`: more runs, many
instructions at a time. `judge`: the verdict.
"""
