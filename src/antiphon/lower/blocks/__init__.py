"""From a program to thread blocks: what runtimes run whose blocks send and receive through queues (as MSCCL's does).

`limits`: what the runtime holds. `parts`: what becomes steps. `operations`: the operations of a program by chunk, and
which of them reads what was written where. `segments`: messages cut into what one step moves, and which are sent on at
once. `lanes`: which of these share channels. `steps`, `place`: blocks and channels of all steps, and what waits for
what. `queues`: whether they get through queues of finite depth. `numbered`: blocks as a file has them. `blocks`: all of
it.
"""
