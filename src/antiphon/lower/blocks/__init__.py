"""From a program to thread blocks that send and receive through queues (MSCCL).

In the order of the stages: `operations` are those of a program by chunk, and which of them reads what was written
where. `segments`: messages cut into what one step moves, which are sent on at once, and which share channels. `place`:
what the runtime holds, blocks and channels of all steps, and what waits for what. `blocks`: all of it, whether blocks
get through queues of finite depth, and blocks as a file has them.
"""
