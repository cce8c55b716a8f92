"""Messages by cards that libfabric knows, over its providers for TCP and for one host: no fast card is needed."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import mismatch_process
import numpy as np
import pytest
from addresses import free_addresses
from lab_env import why_no_lab
from test_comm import calls, over_sockets
from test_comm import table as comm_table
from test_mismatch import check, found_by
from test_native import inputs_of, planned, run_threads, same
from test_sockets import meshed

import antiphon
from antiphon.core.interpret import interpret
from antiphon.core.program import encode
from antiphon.errors import AntiphonError, Invalid, TimedOut, Unsupported
from antiphon.formats.program import both, lower
from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.fabric import Fabric
from antiphon.runtimes.engine.native import OPERATORS, TYPES, Engine, TransportFailed, Wire
from antiphon.runtimes.serve.mesh import handed_over
from antiphon.runtimes.serve.wish import Wish, agreed, wish

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
TCP, TWO = ("tcp", "127.0.0.1"), ("tcp", "127.0.0.1,127.0.0.1")


@pytest.fixture(scope="module")
def engine() -> Engine:
    found = Engine(build.library("sockets"))
    try:
        Fabric(found, *TCP).close()
    except Unsupported as error:
        pytest.skip(str(error))
    return found


@pytest.fixture
def here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one host that would share memory otherwise."""
    monkeypatch.setenv("ANTIPHON_WIRE", "fabric:tcp")
    monkeypatch.delenv("ANTIPHON_SHARED", raising=False)


SIGNALS = """
import os, signal
from antiphon.errors import Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.fabric import Fabric
from antiphon.runtimes.engine.native import Engine
try:
    Fabric(Engine(library("sockets")), "tcp", "127.0.0.1").close()
except Unsupported as error:
    raise SystemExit(f"without: {error}")
try:
    os.kill(os.getpid(), signal.SIGINT)
    print("lost")
except KeyboardInterrupt:
    print("heard", flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_signals_stay_what_they_were(engine: Engine, tmp_path: Path) -> None:
    """Libraries that come with libfabric take some, and write files where the program runs."""
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALS], cwd=tmp_path, capture_output=True, text=True, timeout=1000, check=False
    )
    if ended.stderr.startswith("without: "):  # the one of this process came along with another library
        pytest.skip(ended.stderr.strip())
    assert ended.stdout == "heard\n"
    assert ended.returncode == -signal.SIGSEGV
    assert list(tmp_path.glob("*.btr")) == []


def wires_of(engine: Engine, cards: Sequence[tuple[str, str]]) -> list[Wire]:
    made = [Fabric(engine, *one) for one in cards]
    names = [one.name for one in made]
    sockets = [handed_over(one) for one in meshed(len(cards))]
    return at_once(lambda rank: made[rank].wire(rank, names, sockets[rank], 20.0), len(made))


def at_once(do: Callable[[int], Any], ranks: int) -> list[Any]:
    """What every rank finds, or the first error."""
    with ThreadPoolExecutor(ranks) as pool:
        return [one.result() for one in [pool.submit(do, rank) for rank in range(ranks)]]


def close_all(wires: Sequence[Wire]) -> None:
    """Each waits a little for the farewell of the others."""
    at_once(lambda rank: wires[rank].close(), len(wires))


def check_plan(engine: Engine, cards: Sequence[tuple[str, str]], kind: str, planner: str, units: Sequence[int]) -> None:
    schedule = planned(kind, f"full:ranks={len(cards)}", planner)
    draw, data = random.Random(f"{kind} {planner} {cards}"), encode(both(schedule))
    for unit in units:
        dtype, op, in_place = draw.choice([*TYPES]), draw.choice([*OPERATORS]), draw.random() < 0.5
        given = inputs_of(schedule, unit, dtype, in_place, unit)
        want = interpret(schedule, [one.copy() for one in given], op=op, dtype=dtype, in_place=in_place)
        places, split = [in_place] * len(cards), draw.choice([None, 64 if unit < 100 else 5_000, 100_000])
        found = run_threads(engine, data, given, unit, op, places, split, runs=3, wires=wires_of(engine, cards))
        assert all(map(same, found, want)), (unit, dtype, op, in_place, split)


# ---- messages ----


@needs_cc
def test_short_and_long_messages_by_one_card_and_by_two(engine: Engine) -> None:
    check_plan(engine, [TCP] * 3, "allreduce", "direct", [7])
    check_plan(engine, [TWO] * 3, "alltoall", "direct", [200_001])
    with closing(Fabric(engine, *TWO)) as two:
        assert (two.rails, two.provider.split(";")[0]) == (2, "tcp")  # with ofi_rxm on it before libfabric 1.18


PLANS = [
    ("allreduce", "ring"),
    ("allreduce", "recursive-doubling"),
    ("alltoall", "bruck"),
    ("scatter", "direct"),
]
CARDS = [TCP, TWO, ("net", "127.0.0.1"), ("sockets", "127.0.0.1"), ("shm", "")]


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "planner"), PLANS)
@pytest.mark.parametrize("card", CARDS, ids=[" ".join(one) for one in CARDS])
def test_every_rank_ends_with_what_the_interpreter_says(
    engine: Engine, kind: str, planner: str, card: tuple[str, str]
) -> None:
    check_plan(engine, [card] * 4, kind, planner, [0, 7, 20_001, 300_000])


@needs_cc
@pytest.mark.slow
def test_all_go_by_as_many_cards_as_the_one_with_fewest(engine: Engine) -> None:
    check_plan(engine, [TWO, TCP, TWO], "alltoall", "direct", [7, 200_000])


@needs_cc
@pytest.mark.slow
def test_messages_on_other_channels_wait_aside(engine: Engine) -> None:
    schedule = planned("allreduce", "full:ranks=4", "direct")
    data = encode([lower(schedule, channels=7)])
    for unit in (5, 40_000):
        given = inputs_of(schedule, unit, "float32", False, unit)
        want = interpret(schedule, given)
        found = run_threads(engine, data, given, unit, "sum", [False] * 4, runs=9, wires=wires_of(engine, [TCP] * 4))
        assert all(map(same, found, want))


# ---- faults ----


def broadcast(engine: Engine, unit: int) -> tuple[Any, Any, Any]:
    """From rank 1 to rank 0: a program and both buffers."""
    program = engine.program(encode([lower(planned("broadcast", "full:ranks=2", "direct", root=1))]))
    return program, np.arange(unit, dtype=np.float32), np.zeros(unit, np.float32)


@needs_cc
def test_who_says_farewell_has_sent_all_and_is_missed_later(engine: Engine) -> None:
    """Several calls of which rank 0 has heard nothing yet."""
    wires, units = wires_of(engine, [TCP, TCP]), [3, 900, 20_000]
    for unit in units[:2]:
        program, numbers, _ = broadcast(engine, unit)
        program.plan(1, unit).run(numbers, numbers.copy(), wires[1])

    def give() -> None:
        program, numbers, _ = broadcast(engine, units[2])
        program.plan(1, units[2]).run(numbers, numbers.copy(), wires[1])
        wires[1].close()

    gives = threading.Thread(target=give)
    gives.start()
    for unit in units:
        program, numbers, target = broadcast(engine, unit)
        program.plan(0, unit).run(target, target, wires[0], timeout=20.0)
        assert np.array_equal(target, numbers)
    gives.join()
    with pytest.raises(TransportFailed, match="the connection to rank 1 is lost"):
        program.plan(0, 3).run(target[:3], target[:3], wires[0], timeout=20.0)
    wires[0].close()


@needs_cc
def test_nobody_answers(engine: Engine) -> None:
    wires = wires_of(engine, [TCP, TCP])
    program, _, target = broadcast(engine, 5)
    with pytest.raises(TimedOut, match=r"nothing came or went for 0\.05 seconds"):
        program.plan(0, 5).run(target, target, wires[0], timeout=0.05)
    close_all(wires)


@needs_cc
@pytest.mark.parametrize(("sent", "wanted"), [(8, 5), (5_000, 5), (5, 5_000), (9_000, 5_000)])
def test_another_length_is_refused(engine: Engine, sent: int, wanted: int) -> None:
    wires = wires_of(engine, [TCP, TCP])

    def give() -> None:
        program, numbers, _ = broadcast(engine, sent)
        with suppress(AntiphonError):
            program.plan(1, sent).run(numbers, numbers.copy(), wires[1], timeout=1.0)

    gives = threading.Thread(target=give)
    gives.start()
    program, _, target = broadcast(engine, wanted)
    with pytest.raises(
        TransportFailed, match=f"rank 1 sent a message of {4 * sent} bytes where {4 * wanted} are expected"
    ):
        program.plan(0, wanted).run(target, target, wires[0], timeout=20.0)
    wires[0].close()
    gives.join()
    wires[1].close()


@needs_cc
def test_what_is_no_card_is_told(engine: Engine) -> None:
    for provider, places in (("none such", ""), ("tcp", "203.0.113.9"), ("shm", "no card"), ("tcp", ",")):
        with pytest.raises(AntiphonError, match=r"no card|libfabric|places"):
            Fabric(engine, provider, places)
    one, other = Fabric(engine, *TCP), Fabric(engine, "sockets", "127.0.0.1")
    sockets = [handed_over(row) for row in meshed(2)]
    names = [one.name, other.name]
    for rank, card in enumerate((one, other)):
        with pytest.raises(Invalid, match="another provider of libfabric"):
            card.wire(rank, names, sockets[rank])


# ---- what processes want ----


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("sockets", Wish("sockets")),
        ("fabric", Wish("fabric:")),
        ("fabric:verbs", Wish("fabric:verbs", "verbs")),
        ("fabric:verbs:a,b", Wish("fabric:verbs", "verbs", "a,b")),
        ("fabric:tcp:lo", Wish("fabric:tcp", "tcp", "127.0.0.1")),
        ("fabric:tcp:lo,lo", Wish("fabric:tcp", "tcp", "127.0.0.1,127.0.0.1")),
    ],
)
def test_what_the_environment_wants(text: str, want: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_WIRE", text)
    assert wish() == want
    assert not want.near
    assert want.fabric == text.startswith("fabric")


@pytest.mark.parametrize("text", ["shared", "fabric::x", "fabrics", "sockets:lo", "fabric:" + 64 * "a"])
def test_what_no_environment_can_want(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_WIRE", text)
    with pytest.raises(Invalid, match="ANTIPHON_WIRE: expected"):
        wish()


def test_cards_are_for_those_who_all_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_WIRE", raising=False)
    assert wish() == Wish("")
    assert wish().near
    assert agreed(["", ""]) == Wish("")
    assert agreed(["", "sockets"]) == Wish("sockets")
    assert agreed(["fabric:tcp", "fabric:tcp"]).fabric
    for told in (["fabric:tcp", ""], ["", "fabric:tcp"], ["fabric:tcp", "fabric:efa"], ["fabric:", "sockets"]):
        with pytest.raises(Invalid, match="set ANTIPHON_WIRE alike for all"):
            agreed(told)


ONE_CALL = """
import os, sys, numpy as np, antiphon
wanted, address = sys.argv[1:3], sys.argv[3]
rank = int(os.fork() == 0)
os.environ["ANTIPHON_WIRE"] = wanted[rank]
if not wanted[rank]:
    del os.environ["ANTIPHON_WIRE"]
try:
    with antiphon.comm(rank=rank, ranks=2, address=address, timeout=30) as c:
        said = c.allreduce(np.arange(50000.0)).sum().item()
        files = os.listdir("/proc/self/map_files")
        wire = "cards" if any("libfabric" in os.readlink("/proc/self/map_files/" + one) for one in files) else "none"
except antiphon.errors.AntiphonError as error:
    said, wire = str(error), ""
os.write(1, (__import__("json").dumps([said, wire]) + "\\n").encode())
if rank == 0:
    os.wait()
"""


def one_call(*wanted: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", ONE_CALL, *wanted, *free_addresses(1)],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_cc
@pytest.mark.slow
def test_processes_come_to_the_wire_that_they_want(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one_call("fabric:tcp:lo", "fabric:tcp:lo") == [[2 * sum(range(50000)), "cards"]] * 2
    assert [
        [part in str(said) for part in ("fabric:tcp", "alike")] for said, _ in one_call("fabric:tcp:lo", "sockets")
    ] == [[True, True]] * 2
    assert all("none such" in said for said, _ in one_call("fabric:none such", "fabric:none such"))
    monkeypatch.setenv("ANTIPHON_SHARED", "0")
    assert one_call("", "") == [[2 * sum(range(50000)), "none"]] * 2


# ---- the same as over sockets, between processes ----


@needs_cc
@pytest.mark.slow
def test_every_call_between_processes(here: None, tmp_path: Path) -> None:
    (told, *_, ended), said = over_sockets(3, str(comm_table(tmp_path, 3)), "all")
    assert ended == {"codes": [0, 0, 0]}, said
    assert calls(told["report"])["allreduce", "ring", ""] == 87


@pytest.mark.slow
@needs_cc
def test_a_killed_process_is_an_error_at_the_others(here: None) -> None:
    found, said = over_sockets(4, "", "killed")
    assert found[-1] == {"codes": [1, 1, 1, -9]}, said
    assert {row["kind"] for row in found[:-1]} == {"TransportFailed"}
    assert all("is lost" in row["error"] for row in found[:-1])


@needs_cc
@pytest.mark.slow
def test_calls_that_differ_are_told(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISMATCH_NEAR", "0")
    names = [name for name, _, _ in mismatch_process.PAIRS]
    program = str(Path(mismatch_process.__file__))
    check(found_by([sys.executable, program, "comm", "4", *free_addresses(2 * len(names))]), names, 2)


@pytest.mark.slow
def test_pytorch_by_cards(here: None, tmp_path: Path) -> None:
    torch_tests = pytest.importorskip("test_torch")
    pytest.importorskip("torch")
    found, codes, said = torch_tests.launch(
        tmp_path, 4, ["reductions", "moving", "uneven", "asynchronous", "late", "killed"]
    )
    assert codes[:-1] == [0] * 3, said
    for one in found[:-1]:
        assert "the connection to rank" in one["killed"]["message"]


@needs_cc
@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_lab()), reason=f"a lab: {why_no_lab()}")
def test_between_the_ranks_of_a_lab(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sum.py"
    program.write_text(
        "import os, numpy as np, antiphon\nrank = int(os.environ['RANK'])\n"
        "where = os.environ['MASTER_ADDR'] + ':' + os.environ['MASTER_PORT']\n"
        "with antiphon.comm(rank=rank, ranks=4, address=where, timeout=60, secret='0123456789abcdef') as c:\n"
        "    x = np.arange(70_000.0) + rank\n    assert (c.allreduce(x) == 4 * np.arange(70_000.0) + 6).all()\n"
    )
    monkeypatch.setenv("ANTIPHON_WIRE", "fabric:tcp")
    row = antiphon.lab("run", "ring:ranks=4", command=[sys.executable, str(program)], timeout=60)
    assert row["exit_code"] == 0


# ---- what is known of libfabric ----

FIELDS = {
    "fabric_info": (
        "fi_info",
        "next caps mode format=addr_format own_bytes=src_addrlen own=src_addr out=tx_attr in=rx_attr end=ep_attr",
    ),
    "fabric_out": ("fi_tx_attr", "caps mode order=msg_order size"),
    "fabric_in": ("fi_rx_attr", "caps mode order=msg_order size"),
    "fabric_end": ("fi_ep_attr", "type longest=max_msg_size"),
    "fabric_card": (
        "fi_domain_attr", "open=domain name threads=threading careful=resource_mgmt addresses=av_type names=mr_mode"
    ),
    "fabric_info ": ("fi_info", "card=domain_attr net=fabric_attr"),
    "fabric_net": ("fi_fabric_attr", "open=fabric name provider=prov_name"),
    "fabric_object": ("fid", "kind=fclass context ops"),
    "fabric_ops": ("fi_ops", "size close bind control"),
    "fabric_provider": ("fid_fabric", "ops"),
    "fabric_provider_ops": ("fi_ops_fabric", "domain may_wait=trywait"),
    "fabric_domain": ("fid_domain", "ops"),
    "fabric_domain_ops": ("fi_ops_domain", "book=av_open queue=cq_open endpoint"),
    "fabric_book": ("fid_av", "ops"),
    "fabric_book_ops": ("fi_ops_av", "insert"),
    "fabric_book_wish": ("fi_av_attr", "type count flags"),
    "fabric_queue": ("fid_cq", "ops"),
    "fabric_queue_ops": ("fi_ops_cq", "read fault=readerr"),
    "fabric_queue_wish": (
        "fi_cq_attr", "size flags format wait=wait_obj vector=signaling_vector condition=wait_cond set=wait_set"
    ),
    "fabric_done": ("fi_cq_msg_entry", "context=op_context flags length=len"),
    "fabric_fault": ("fi_cq_err_entry", "context=op_context error=err more=err_data more_bytes=err_data_size"),
    "fabric_endpoint": ("fid_ep", "meeting=cm tagged"),
    "fabric_meeting_ops": ("fi_ops_cm", "name=getname"),
    "fabric_tagged_ops": ("fi_ops_tagged", "receive=recv send"),
}  # fmt: skip
WHOLE = ("fabric_queue_wish", "fabric_book_wish", "fabric_done", "fabric_fault")  # which we hand over or get ourselves
NUMBERS = {
    "FABRIC_TAGGED": "FI_TAGGED", "FABRIC_SOURCE": "FI_SOURCE", "FABRIC_DIRECTED": "FI_DIRECTED_RECV",
    "FABRIC_IN_ORDER": "FI_ORDER_SAS", "FABRIC_OUT": "FI_TRANSMIT", "FABRIC_IN": "FI_RECV",
    "FABRIC_OWN_WORDS": "(FI_CONTEXT | FI_CONTEXT2)", "FABRIC_RELIABLE": "FI_EP_RDM",
    "FABRIC_ANY_NAMES": "(FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT)",
    "FABRIC_ONE_THREAD": "FI_THREAD_DOMAIN", "FABRIC_CAREFUL": "FI_RM_ENABLED", "FABRIC_IPV4": "FI_SOCKADDR_IN",
    "FABRIC_WITH_LENGTH": "FI_CQ_FORMAT_MSG", "FABRIC_NO_WAIT": "FI_WAIT_NONE", "FABRIC_WAIT_FILE": "FI_WAIT_FD",
    "FABRIC_GET_FILE": "FI_GETWAIT", "FABRIC_ENABLE": "FI_ENABLE", "FABRIC_ERROR_WAITS": "FI_EAVAIL",
}  # fmt: skip


@needs_cc
def test_tables_lie_as_in_the_headers_of_libfabric(tmp_path: Path) -> None:
    lines = ["#include <rdma/fi_cm.h>", "#include <rdma/fi_domain.h>", "#include <rdma/fi_endpoint.h>"]
    lines += ["#include <rdma/fi_tagged.h>", f'#include "{build.NATIVE / "fabric_layout.h"}"']
    there = ["cc", "-E", "-include", "rdma/fi_tagged.h", "-x", "c", "/dev/null"]
    if subprocess.run(there, capture_output=True, check=False).returncode:
        pytest.skip("needs the headers of libfabric: apt-get install libfabric-dev")
    for ours, (theirs, fields) in FIELDS.items():
        for field in fields.split():
            mine, _, name = field.partition("=")
            same_place = f"offsetof({ours}, {mine}) == offsetof(struct {theirs}, {name or mine})"
            lines.append(f'_Static_assert({same_place}, "{ours}.{mine}");')
    lines += [f'_Static_assert(sizeof({ours}) == sizeof(struct {FIELDS[ours][0]}), "{ours}");' for ours in WHOLE]
    lines += [f'_Static_assert({ours} == {theirs}, "{ours}");' for ours, theirs in NUMBERS.items()]
    lines.append('_Static_assert(sizeof(fabric_words) >= sizeof(struct fi_context2), "words");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run(["cc", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
