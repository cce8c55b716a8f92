"""From a program to thread blocks that send and receive through queues (MSCCL).

In the order of the stages: `operations` reads the program chunk by chunk: which operation reads what another wrote.
`segments` cuts messages into what one step moves, and decides which are forwarded at once and which share channels.
`place` assigns steps to blocks and channels, within the limits of the runtime, with what each step waits for. `blocks`
runs all stages, checks that queues of finite depth cannot deadlock, and numbers the blocks as a file needs them.
"""
