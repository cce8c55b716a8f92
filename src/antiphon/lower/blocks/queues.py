"""Whether blocks get through queues of finite depth, every message chunk by chunk: as they go when chunks are large.

What a step waits for does not depend on data, so one order decides for all.
"""

from __future__ import annotations

from collections import defaultdict

from antiphon.lower.blocks.steps import RECEIVES, SENDS, Block


def stuck(blocks: list[list[Block]], slots: int) -> list[Block]:
    """Blocks that never come to their end. Linear in steps, unless queues are often full."""
    every = [block for mine in blocks for block in mine]
    at = dict.fromkeys(every, 0)
    left = {block: block.steps[0].count for block in every if block.steps}
    sent: dict[tuple[int, int, int], int] = defaultdict(int)
    taken: dict[tuple[int, int, int], int] = defaultdict(int)
    sleepers: dict[object, list[Block]] = defaultdict(list)
    work = [block for block in every if block.steps]
    while work:
        block = work.pop()
        come = (block.recv, block.rank, block.channel)
        go = (block.rank, block.send, block.channel)
        while at[block] < len(block.steps):
            step = block.steps[at[block]]
            missing = next((one for one in step.waits if at[one.block] <= one.place), None)
            if missing is not None:
                sleepers[missing.block].append(block)
                break
            receives, sends = step.verb in RECEIVES, step.verb in SENDS
            many = left[block]
            if receives:
                many = min(many, sent[come] - taken[come])
            if sends:
                many = min(many, slots - (sent[go] - taken[go]))
            if receives and not sent[come] - taken[come]:
                sleepers[come, "full"].append(block)
                break
            if sends and sent[go] - taken[go] >= slots:
                sleepers[go, "empty"].append(block)
                break
            if receives:
                taken[come] += many
                work += sleepers.pop((come, "empty"), ())
            if sends:
                sent[go] += many
                work += sleepers.pop((go, "full"), ())
            left[block] -= many
            if not left[block]:
                at[block] += 1
                if at[block] < len(block.steps):
                    left[block] = block.steps[at[block]].count
                work += sleepers.pop(block, ())
    return [block for block in every if at[block] < len(block.steps)]
