"""From a program to thread blocks that send and receive through queues (MSCCL).

In the order of the stages: `operations` reads the program chunk by chunk: which operation reads what another wrote.
`segments` cuts messages into segments that one instruction moves, and decides which are forwarded at once and which
share channels. `place` assigns instructions to thread blocks and channels, within the limits of the runtime, and finds
what each instruction waits for. `blocks` runs all stages, checks that queues of finite depth cannot deadlock, and
numbers the thread blocks as a file needs them.

A block in this folder is a thread block, and a *step* is one of its instructions, as MSCCL calls it.
"""
