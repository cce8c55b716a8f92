"""Execution plans as others write them, made by hand from what is published about the executor of MSCCL++ (its
documentation of operations, and the algorithms it describes): not copied from any file.

- `pairs`: allreduce in place of two ranks, each block reading, adding and writing one chunk of the other (the direct
  allreduce of its quick start).
- `packets`: the one-shot allreduce of its results page for small sizes: everybody sends packets, everybody adds.
- `crowd`: an allreduce by packets in three blocks, which a barrier holds in order.
- `forward`: an allgather by packets, where one rank passes on what it got (put, copy and unpack of packets).
- `grouped`: an allgather whose puts are shared by a group of two blocks, each with a channel of its own.
- `pulled`: an allgather by get, after a relaxed signal that all have begun.
- `ported`: a broadcast through port channels, signalled by the proxy.
- `staged`: a reducescatter in two blocks, which a semaphore of the GPU holds in order.
- `switched`: the allreduce of a switch that adds and multicasts (NVLS), relaxed signals around it.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
NOP: Row = {"name": "nop"}


def tell(name: str, *ids: int, kind: str = "memory") -> Row:
    return {"name": name, "channel_ids": list(ids), "channel_type": kind}


def here(kind: str, index: int, size: int = 1) -> Row:
    return {"type": kind, "index": index, "size": size}


def there(buffer: int, index: int, size: int = 1) -> Row:
    return {"buffer_id": buffer, "index": index, "size": size}


def data(name: str, source: list[Row], target: list[Row], **more: Any) -> Row:
    return {"name": name, "src_buff": source, "dst_buff": target, **more}


def block(number: int, ops: list[Row], channels: list[int], buffers: list[int], kind: str = "memory") -> Row:
    return {
        "id": number, "ops": ops,
        "channels": [{"channel_type": kind, "channel_ids": channels}] if channels else [],
        "remote_buffer_refs": [{"access_channel_type": kind, "remote_buffer_ids": buffers}] if buffers else [],
    }  # fmt: skip


def gpu(
    rank: int, chunks: tuple[int, int, int], blocks: list[Row], peers: list[int], buffers: list[tuple[int, str]],
    kind: str = "memory", semaphores: tuple[int, ...] = (), switches: list[Row] | None = None,
) -> Row:  # fmt: skip
    return {
        "id": rank, "input_chunks": chunks[0], "output_chunks": chunks[1], "scratch_chunks": chunks[2],
        "threadblocks": blocks,
        "channels": ([{"channel_type": kind, "connected_to": peers}] if peers else []) + (switches or []),
        "remote_buffers": [{"rank": at, "type": of, "access_channel_types": [kind]} for at, of in buffers],
        "semaphores": [{"init_value": value} for value in semaphores],
    }  # fmt: skip


def plan(name: str, collective: str, in_place: bool, gpus: list[Row], *, packets: bool = False) -> Row:
    return {
        "name": name, "collective": collective, "protocol": "LL" if packets else "Simple", "inplace": in_place,
        "reuse_resources": False, "gpus": gpus, "num_threads_per_block": 1024,
        "use_double_scratch_buffer": packets, "buffer_alignment": 16, "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }  # fmt: skip


def pairs() -> Row:
    def ops(chunk: int) -> list[Row]:
        add = data("rres", [here("i", chunk), there(0, chunk)], [here("i", chunk), there(0, chunk)],
                   channel_type="memory", reduce_op="sum")  # fmt: skip
        return [tell("rlxsignal", 0), tell("rlxwait", 0), NOP, add, NOP, tell("signal", 0), tell("wait", 0)]

    def rank(at: int) -> Row:
        blocks = [block(number, ops(2 * at + number), [number], [0]) for number in (0, 1)]
        blocks += [
            block(2 + number, [tell("rlxsignal", 0), tell("rlxwait", 0), tell("signal", 0), tell("wait", 0)],
                  [2 + number], []) for number in (0, 1)
        ]  # fmt: skip
        if at:  # the blocks that work here meet those that only say so there
            for made in blocks:
                made["channels"][0]["channel_ids"] = [(made["channels"][0]["channel_ids"][0] + 2) % 4]
        return gpu(at, (4, 4, 0), blocks, [1 - at] * 4, [(1 - at, "i")])

    return plan("pairs", "allreduce", True, [rank(0), rank(1)])


def packets() -> Row:
    n = 3

    def rank(at: int) -> Row:
        others = [peer for peer in range(n) if peer != at]
        send = data("ppkt", [here("i", 0)] * 2, [there(0, at), there(1, at)], channel_ids=[0, 1], channel_type="memory")
        add = data("repkt", [here("i", 0), *(here("s", peer) for peer in others)], [here("o", 0)], reduce_op="sum")
        return gpu(at, (1, 1, n), [block(0, [send, add], [0, 1], [0, 1])], others, [(peer, "s") for peer in others])

    return plan("packets", "allreduce", False, [rank(at) for at in range(n)], packets=True)


def crowd() -> Row:
    """Allreduce of two ranks by packets, in three blocks one after another: they come to one barrier twice, the second
    before and after its work, which all its threads do at their own pace."""
    gate = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 3}

    def rank(at: int) -> Row:
        send = data("ppkt", [here("i", 0, 2)], [there(0, 2 * at, 2)], channel_ids=[0], channel_type="memory")
        take = [data("upkt", [here("s", 2 * (1 - at) + chunk)], [here("o", chunk)]) for chunk in (0, 1)]
        add = [
            data("re", [here("o", chunk), here("i", chunk)], [here("o", chunk)], reduce_op="sum") for chunk in (0, 1)
        ]
        blocks = [
            block(0, [send, gate, gate], [0], [0]), block(1, [gate, *take, gate], [], []),
            block(2, [gate, gate, *add], [], []),
        ]  # fmt: skip
        return gpu(at, (2, 2, 4), blocks, [1 - at], [(1 - at, "s")])

    return plan("crowd", "allreduce", False, [rank(0), rank(1)], packets=True)


def forward() -> Row:
    zero = [
        block(0, [data("ppkt", [here("o", 0)], [there(0, 0)], channel_ids=[0], channel_type="memory")], [0], [0]),
        block(1, [data("upkt", [here("s", 1)], [here("o", 1)])], [], []),
    ]
    one = [
        block(0, [data("cpkt", [here("o", 1)], [here("s", 1)])], [], []),
        block(1, [data("rppkt", [here("s", 1)], [there(0, 1)], channel_ids=[0], channel_type="memory")], [0], [0]),
        block(2, [data("upkt", [here("s", 0)], [here("o", 0)])], [], []),
    ]
    gpus = [gpu(0, (1, 2, 2), zero, [1], [(1, "s")]), gpu(1, (1, 2, 2), one, [0], [(0, "s")])]
    return plan("forward", "allgather", True, gpus, packets=True)


def grouped() -> Row:
    def ops(at: int, part: int) -> list[Row]:
        group = {"tb_id": part, "tbg_size": 2}
        return [
            tell("signal", 0), data("copy", [here("i", 0)], [here("o", at)], tbg_info=group), tell("wait", 0), NOP,
            data("put", [here("i", 0)], [there(0, at)], channel_ids=[0], channel_type="memory", tbg_info=group), NOP,
            tell("signal", 0), tell("wait", 0),
        ]  # fmt: skip

    def rank(at: int) -> Row:
        return gpu(at, (1, 2, 0), [block(part, ops(at, part), [part], [0]) for part in (0, 1)], [1 - at] * 2,
                   [(1 - at, "o")])  # fmt: skip

    return plan("grouped", "allgather", False, [rank(0), rank(1)])


def pulled() -> Row:
    def rank(at: int) -> Row:
        other = 1 - at
        ops = [
            data("copy", [here("i", 0)], [here("s", at)]), NOP, tell("signal", 0), tell("wait", 0), NOP,
            data("get", [there(0, other)], [here("s", other)], channel_ids=[0], channel_type="memory"), NOP,
            data("copy", [here("s", 0, 2)], [here("o", 0, 2)]), tell("rlxsignal", 0), tell("rlxwait", 0),
        ]  # fmt: skip
        return gpu(at, (1, 2, 2), [block(0, ops, [0], [0])], [other], [(other, "s")])

    return plan("pulled", "allgather", False, [rank(0), rank(1)])


def ported() -> Row:
    root = [
        tell("wait", 0, 1, kind="port"), data("copy", [here("i", 0)], [here("o", 0)]), NOP,
        data("pwsf", [here("i", 0)] * 2, [there(0, 0), there(1, 0)], channel_ids=[0, 1], channel_type="port"),
    ]  # fmt: skip
    leaf = [tell("signal", 0, kind="port"), tell("wait", 0, kind="port")]
    gpus = [gpu(0, (1, 1, 0), [block(0, root, [0, 1], [0, 1], "port")], [1, 2], [(1, "o"), (2, "o")], "port")]
    gpus += [gpu(at, (1, 1, 0), [block(0, leaf, [0], [], "port")], [0], [], "port") for at in (1, 2)]
    return plan("ported", "broadcast", False, gpus)


def staged() -> Row:
    def rank(at: int) -> Row:
        other = 1 - at
        first = [
            tell("signal", 0), tell("wait", 0), NOP,
            data("put", [here("i", other)], [there(0, 0)], channel_ids=[0], channel_type="memory"), NOP,
            tell("signal", 0), tell("wait", 0), NOP, {"name": "sem_release", "semaphore_ids": [0]},
        ]  # fmt: skip
        second = [
            {"name": "sem_acquire", "semaphore_ids": [0]}, NOP,
            data("re", [here("i", at), here("s", 0)], [here("o", 0)], reduce_op="sum"),
        ]  # fmt: skip
        blocks = [block(0, first, [0], [0]), block(1, second, [], [])]
        return gpu(at, (2, 1, 1), blocks, [other], [(other, "s")], semaphores=(0,))

    return plan("staged", "reducescatter", False, [rank(0), rank(1)])


def switched() -> Row:
    n = 4

    def rank(at: int) -> Row:
        others = [peer for peer in range(n) if peer != at]
        place = {"switch_channel_id": 0, "index": at, "size": 1}
        ops = [
            tell("rlxsignal", 0, 1, 2), tell("rlxwait", 0, 1, 2), NOP,
            data("glres", [place], [place], channel_ids=[0], channel_type="switch"), NOP,
            tell("signal", 0, 1, 2), tell("wait", 0, 1, 2),
        ]  # fmt: skip
        made = block(0, ops, [0, 1, 2], [])
        made["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        group = {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": n, "ranks": list(range(n))}]}
        return gpu(at, (n, n, 0), [made], others, [], switches=[group])

    return plan("switched", "allreduce", True, [rank(at) for at in range(n)])


FOREIGN = {made.__name__: made() for made in (pairs, packets, crowd, forward, grouped, pulled, ported, staged)}
SWITCHED = switched()
