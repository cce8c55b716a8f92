"""Calls of a process group in either form that PyTorch has, what is refused at the call, and what a group tells."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest
from later import Later

torch, dist, ours = Later("torch"), Later("torch.distributed"), Later("antiphon.torch")
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install 'antiphon[torch]'")

SECONDS = timedelta(seconds=60)


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Any]]:
    """Two processes of a group, as two threads."""
    store = dist.HashStore()
    made: list[Any] = [None, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ANTIPHON_TABLE", raising=False)
        side_by_side(
            lambda rank: made.__setitem__(rank, ours.AntiphonGroup(store, rank, 2, SECONDS, [0, 1], 2, True)), range(2)
        )
    yield made
    side_by_side(lambda rank: made[rank].shutdown(), range(2))


def side_by_side(do: Callable[[Any], Any], of: Any) -> list[Any]:
    found: dict[int, Any] = {}

    def one(place: int, what: Any) -> None:
        try:
            found[place] = do(what)
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(of)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[place] for place in range(len(threads))]


def mine(rank: int, many: int = 3) -> Any:
    return torch.arange(many, dtype=torch.float32) + 10 * rank


def outcome(do: Callable[[Any, Any, Any], Any], pair: list[Any]) -> list[Any]:
    """What `do` leaves in an empty list of results, given the group and its rank; nobody fails."""

    def one(group: Any) -> Any:
        results: list[Any] = []
        do(group, group.rank(), results).wait()
        return [result.tolist() for result in results]

    found = side_by_side(one, pair)
    for one_ in found:
        if isinstance(one_, Exception):
            raise one_
    return found


def into(results: list[Any], *tensors: Any) -> Any:
    results += tensors
    return tensors[0] if len(tensors) == 1 else list(tensors)


FORMS: dict[str, list[Callable[[Any, Any, Any], Any]]] = {
    "[[[0.0, 1.0, 2.0]], [[0.0, 1.0, 2.0]]]": [
        lambda g, r, out: g.broadcast([into(out, mine(r))], dist.BroadcastOptions()),
        lambda g, r, out: g.broadcast([into(out, mine(r))]),
        lambda g, r, out: g.broadcast(into(out, mine(r)), 0),
        lambda g, r, out: g.broadcast(into(out, mine(r)), root=0),
        lambda g, r, out: g.broadcast(tensor=into(out, mine(r)), root=0, timeout=SECONDS),
    ],
    "[[[10.0, 11.0, 12.0]], [[10.0, 11.0, 12.0]]]": [
        lambda g, r, out: g.allreduce([into(out, mine(r))], dist.ReduceOp.MAX),
        lambda g, r, out: g.allreduce(into(out, mine(r)), op=dist.ReduceOp.MAX),
        lambda g, r, out: g.allreduce(tensor=into(out, mine(r)), op=dist.ReduceOp(dist.ReduceOp.MAX), timeout=SECONDS),
        lambda g, r, out: g.allreduce(tensors=[into(out, mine(r))], op=dist.ReduceOp.MAX),
        lambda g, r, out: g.broadcast(into(out, mine(r)), root=1),
    ],
    "[[[0.0, 1.0, 2.0]], [[10.0, 12.0, 14.0]]]": [
        lambda g, r, out: g.reduce(into(out, mine(r)), 1),
        lambda g, r, out: g.reduce(into(out, mine(r)), root=1, op=dist.ReduceOp.SUM),
        lambda g, r, out: g.reduce(tensor=into(out, mine(r)), root=1, timeout=SECONDS),
    ],
    "[[[0.0], [10.0]], [[0.0], [10.0]]]": [
        lambda g, r, out: g.allgather([into(out, *torch.zeros(2, 1))], [mine(r, 1)]),
        lambda g, r, out: g.allgather(into(out, *torch.zeros(2, 1)), mine(r, 1)),
        lambda g, r, out: g.allgather(into(out, *torch.zeros(2, 1)), input_tensor=mine(r, 1), timeout=SECONDS),
        lambda g, r, out: g.allgather(output_tensors=into(out, *torch.zeros(2, 1)), input_tensor=mine(r, 1)),
    ],
    "[[], [[0.0], [10.0]]]": [
        lambda g, r, out: g.gather(into(out, *torch.zeros(2, 1)) if r else [], mine(r, 1), 1),
        lambda g, r, out: g.gather([into(out, *torch.zeros(2, 1))] if r else [], [mine(r, 1)], 1),
        lambda g, r, out: g.gather(into(out, *torch.zeros(2, 1)) if r else [], input_tensor=mine(r, 1), root=1),
    ],
    "[[[10.0]], [[11.0]]]": [
        lambda g, r, out: g.scatter(into(out, torch.zeros(1)), list(mine(1, 2).split(1)) if r else [], 1),
        lambda g, r, out: g.scatter(
            output_tensor=into(out, torch.zeros(1)), input_tensors=list(mine(1, 2).split(1)) if r else [], root=1
        ),
        lambda g, r, out: g.reduce_scatter(
            into(out, torch.zeros(1)), list(mine(r, 2).split(1)), op=dist.ReduceOp.MAX
        ),
        lambda g, r, out: g.reduce_scatter(
            output=into(out, torch.zeros(1)), input=list(mine(r, 2).split(1)), op=dist.ReduceOp.MAX, timeout=SECONDS
        ),
    ],
    "[[[0.0, 10.0]], [[1.0, 11.0]]]": [
        lambda g, r, out: g.alltoall_base(into(out, torch.zeros(2)), mine(r, 2), [], []),
        lambda g, r, out: g.alltoall_base(
            output=into(out, torch.zeros(2)), input=mine(r, 2), output_split_sizes=[1, 1], input_split_sizes=[1, 1],
            timeout=SECONDS,
        ),
        lambda g, r, out: g.all_to_all_single(into(out, torch.zeros(2)), mine(r, 2), [], [], timeout=SECONDS),
    ],
}  # fmt: skip


@pytest.mark.parametrize("wanted", FORMS)
def test_either_form_means_the_same(wanted: str, pair: list[Any]) -> None:
    for form in FORMS[wanted]:
        assert str(outcome(form, pair)) == wanted


WRONG: list[tuple[str, Callable[[Any], Any]]] = [
    ("broadcast: invalid root rank: 2", lambda g: g.broadcast(mine(0), 2)),
    ("broadcast: invalid root rank: -1", lambda g: g.broadcast(mine(0), root=-1)),
    ("reduce: invalid root rank: 7", lambda g: g.reduce(mine(0), root=7)),
    ("gather: invalid root rank: 2", lambda g: g.gather([], [mine(0)], 2)),
    ("scatter: invalid root rank: 2", lambda g: g.scatter([mine(0)], [], 2)),
    ("broadcast: invalid root tensor: 0; 0 tensors were passed", lambda g: g.broadcast([])),
    ("allreduce: requires non-empty tensor list", lambda g: g.allreduce([])),
    ("allreduce_coalesced: requires non-empty tensor list", lambda g: g.allreduce_coalesced([])),
    ("reduce: requires a single-element tensor list, not 2", lambda g: g.reduce([mine(0), mine(0)])),
    ("allgather: requires non-empty tensor list", lambda g: g.allgather([], [])),
    ("allgather: requires input/output tensor lists to have the same length", lambda g: g.allgather([], [mine(0)])),
    ("allgather: invalid output tensor list: it has 3", lambda g: g.allgather([[mine(0)] * 3], [mine(0)])),
    ("reduce_scatter: invalid input tensor list: it has 1", lambda g: g.reduce_scatter([mine(0)], [[mine(0)]])),
    ("alltoall: invalid input tensor list: it has 1", lambda g: g.alltoall([mine(0)] * 2, [mine(0)])),
    ("gather: requires a single-element output list", lambda g: g.gather([], [mine(0)], g.rank())),
    ("gather: invalid output tensor list", lambda g: g.gather([[mine(0)]], [mine(0)], g.rank())),
    ("gather: requires empty output on non-root", lambda g: g.gather([[mine(0)] * 2], [mine(0)], 1 - g.rank())),
    ("scatter: requires a single-element input list", lambda g: g.scatter([mine(0)], [], g.rank())),
    ("scatter: requires empty input on non-root", lambda g: g.scatter([mine(0)], [[mine(0)] * 2], 1 - g.rank())),
]


@pytest.mark.parametrize(("said", "call"), WRONG, ids=[said for said, _ in WRONG])
def test_what_is_wrong_is_refused_at_the_call(said: str, call: Callable[[Any], Any], pair: list[Any]) -> None:
    """Nobody has to wait for it, it is no call of the group, and the group goes on."""
    made = [group._get_sequence_number_for_group() for group in pair]
    for error in side_by_side(call, pair):
        assert isinstance(error, ValueError), error
        assert said in str(error)
    assert [group._get_sequence_number_for_group() for group in pair] == made
    assert outcome(lambda g, r, out: g.allreduce(into(out, mine(r))), pair) == [[[10.0, 12.0, 14.0]]] * 2


def test_no_tensors_at_all(pair: list[Any]) -> None:
    with pytest.raises(TypeError, match="no tensors"):
        pair[0].broadcast(root=0)


def test_what_a_group_tells_of_itself(pair: list[Any]) -> None:
    for group in pair:
        group._set_sequence_number_for_group()
        assert group._get_sequence_number_for_group() == 0
    side_by_side(lambda group: [group.barrier(timeout=SECONDS).wait(), group.allreduce(mine(0)).wait()], pair)
    for rank, group in enumerate(pair):
        assert group._get_sequence_number_for_group() == 2
        behind = group._get_backend(torch.device("cpu"))
        assert (behind.rank(), behind.size(), behind.name()) == (rank, 2, "antiphon")
        assert not behind.supports_splitting
        options = behind.options
        assert (options.backend, options._timeout, options.global_ranks_in_group) == ("antiphon", SECONDS, [0, 1])
        assert torch.device("cpu") in group._device_types
        group._wait_for_pending_works()


def test_a_timeout_that_is_given_holds(pair: list[Any]) -> None:
    """Last of all: afterwards the group is broken."""
    work = pair[0].allreduce(mine(0), timeout=timedelta(seconds=0.3))
    with pytest.raises(ours.CollectiveFailed):
        work.wait()


# ---- TORCH_DISTRIBUTED_DEBUG=DETAIL ----


@pytest.fixture
def detailed() -> Iterator[list[Any]]:
    """Three that tell each other what they call."""
    store, made = dist.HashStore(), list[Any]([None] * 3)
    usual = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        side_by_side(
            lambda rank: made.__setitem__(rank, ours.AntiphonGroup(store, rank, 3, SECONDS, [0, 1, 2], 3, True)),
            range(3),
        )
    finally:
        dist.set_debug_level(usual)
    yield made
    side_by_side(lambda group: group.shutdown(), made)


DIFFERING = {
    "another shape": (
        lambda group: group.allreduce([torch.zeros(2, 3) if group.rank() == 2 else torch.zeros(3, 2)]),
        "rank 0 calls all_reduce (sum) of float32 [3, 2], rank 2 all_reduce (sum) of float32 [2, 3]",
    ),
    "another call": (
        lambda group: group.barrier() if group.rank() == 1 else group.broadcast([torch.zeros(4)], 0),
        "rank 0 calls broadcast from rank 0 of float32 [4], rank 1 barrier",
    ),
    "another root": (
        lambda group: group.broadcast([torch.zeros(4)], int(group.rank() == 1)),
        "rank 0 calls broadcast from rank 0 of float32 [4], rank 1 broadcast from rank 1 of float32 [4]",
    ),
    "more tensors": (
        lambda group: group.allreduce([torch.zeros(2)] * (1 + group.rank() // 2)),
        "rank 0 calls all_reduce (sum) of float32 [2], rank 2 all_reduce (sum) of float32 [2], float32 [2]",
    ),
}


@pytest.mark.parametrize("what", DIFFERING)
def test_calls_that_differ_are_told_in_full_and_the_group_goes_on(what: str, detailed: list[Any]) -> None:
    do, want = DIFFERING[what]
    for error in side_by_side(lambda group: do(group).wait(), detailed):
        assert isinstance(error, ours.CollectiveFailed)
        assert str(error) == f"TORCH_DISTRIBUTED_DEBUG=DETAIL: {want}"
    found = outcome(lambda group, rank, results: group.allreduce([into(results, mine(rank))]), detailed)
    assert found == [[[30.0, 33.0, 36.0]]] * 3


def test_calls_of_uneven_shapes_are_alike(detailed: list[Any]) -> None:
    def uneven(group: Any, rank: int, results: list[Any]) -> Any:
        return group.alltoall_base(into(results, torch.zeros(3)), mine(rank, 3 * rank), [0, 1, 2], [rank] * 3)

    assert outcome(uneven, detailed) == [[[10.0, 20.0, 21.0]], [[11.0, 22.0, 23.0]], [[12.0, 24.0, 25.0]]]

    def gathered(group: Any, rank: int, results: list[Any]) -> Any:
        outputs = [[torch.zeros(3) for _ in range(3)]] if rank == 1 else []
        results += outputs[0] if outputs else []
        return group.gather(outputs, [mine(rank)], 1)

    assert outcome(gathered, detailed)[1] == [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]

    def lists(group: Any, rank: int, results: list[Any]) -> Any:
        outputs = [torch.zeros(other + 1) for other in range(3)]
        results += outputs
        return group.allgather([outputs], [mine(rank, rank + 1)])

    assert outcome(lists, detailed) == [[[0.0], [10.0, 11.0], [20.0, 21.0, 22.0]]] * 3
