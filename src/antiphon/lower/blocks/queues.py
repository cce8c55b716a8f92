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
        steps, here, rest = block.steps, at[block], left[block]
        while here < len(steps):
            step = steps[here]
            missing = None
            for one in step.waits:
                if (here if one.block is block else at[one.block]) <= one.place:
                    missing = one.block
                    break
            if missing is not None:
                sleepers[missing].append(block)
                break
            many = rest
            if step.verb in RECEIVES:
                full = sent[come] - taken[come]
                if not full:
                    sleepers[come, "full"].append(block)
                    break
                many = min(many, full)
            if step.verb in SENDS:
                empty = slots - (sent[go] - taken[go])
                if empty <= 0:
                    sleepers[go, "empty"].append(block)
                    break
                many = min(many, empty)
                sent[go] += many
                if (go, "full") in sleepers:
                    work += sleepers.pop((go, "full"))
            if step.verb in RECEIVES:
                taken[come] += many
                if (come, "empty") in sleepers:
                    work += sleepers.pop((come, "empty"))
            rest -= many
            if not rest:
                here += 1
                at[block] = here
                rest = steps[here].count if here < len(steps) else 0
                if block in sleepers:
                    work += sleepers.pop(block)
        left[block] = rest
    return [block for block in every if at[block] < len(block.steps)]
