"""Strangers at the ports of a job: real sockets, at rank 0's address and at the doors of the mesh."""

import contextlib
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hostile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meetings import Meeting
from quick import crossed, examples

import antiphon
from antiphon.errors import AntiphonError, Invalid, TimedOut
from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve import admission, rendezvous, texts
from antiphon.runtimes.serve.admission import Handshake, Stranger, connector_handshake, derive_key, listener_handshake
from antiphon.runtimes.serve.mesh import connect_mesh
from antiphon.runtimes.serve.rendezvous import Star
from antiphon.runtimes.serve.secret import Secret, given_secret, job_secret

SECRET = "a text of more than 16 bytes"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    for name in ("ANTIPHON_SECRET", "ANTIPHON_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


def free() -> tuple[str, int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        host_name, port = one.getsockname()
        return host_name, port


def text_of(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def listening(address: tuple[str, int]) -> None:
    """Until somebody does; what this connects counts as a stranger."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            socket.create_connection(address, 1).close()
            return
        except OSError:
            time.sleep(0.01)


def job(pool: ThreadPoolExecutor, address: tuple[str, int], ranks: int, **options: Any) -> list[Future[list[str]]]:
    """Every rank but 0 in a thread of its own, each with what it got by an exchange."""
    return [pool.submit(take_part, rank, ranks, address, **options) for rank in range(1, ranks)]


def take_part(rank: int, ranks: int, address: tuple[str, int], **options: Any) -> list[str]:
    with Star(rank, ranks, text_of(address), options.pop("timeout", 20.0), options.pop("secret", SECRET)) as star:
        return [*star.exchange(f"from {rank}")]


FOUR = [f"from {rank}" for rank in range(4)]


@pytest.mark.parametrize("act", hostile.ACTS)
def test_a_stranger_is_turned_away_and_the_job_starts(act: str, pool: ThreadPoolExecutor) -> None:
    address, draw = free(), random.Random(act)
    first = pool.submit(take_part, 0, 4, address)
    listening(address)
    held = [hostile.commit(act, address, draw) for _ in range(5)]
    others = job(pool, address, 4)
    assert first.result() == FOUR
    assert [one.result() for one in others] == [FOUR] * 3
    for one in held:
        if one is not None:
            one.close()


@pytest.mark.slow
def test_one_that_sends_a_byte_a_second_is_cut_off(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_TIMEOUT", 0.3)
    address = free()
    first = pool.submit(take_part, 0, 4, address)
    listening(address)
    slow = hostile.commit("byte by byte", address, random.Random(1))
    assert slow is not None
    with slow:
        assert hostile.drip(slow, 20.0) < 20
    others = job(pool, address, 4)
    assert [one.result() for one in (first, *others)] == [FOUR] * 4


def test_hundreds_that_hold_give_way(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there are places, and none of them would go by itself."""
    monkeypatch.setattr(admission, "HANDSHAKE_TIMEOUT", 1000.0)
    address, draw = free(), random.Random(2)
    first = pool.submit(take_part, 0, 4, address)
    listening(address)
    held = [hostile.commit("holds", address, draw) for _ in range(300)]
    others = job(pool, address, 4)
    assert [one.result() for one in (first, *others)] == [FOUR] * 4
    for one in held:
        assert one is not None
        one.close()


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from antiphon.runtimes.serve.rendezvous import Star
with Star(0, 4, sys.argv[1], 30.0) as star:
    print(star.exchange("from 0"))
"""


def test_a_process_without_numbers_for_more_sockets_lets_strangers_go(pool: ThreadPoolExecutor) -> None:
    address, draw = free(), random.Random(3)
    with subprocess.Popen([sys.executable, "-c", FEW_FILES, text_of(address)], stdout=subprocess.PIPE) as first:
        listening(address)
        held = [hostile.commit("holds", address, draw) for _ in range(100)]
        others = job(pool, address, 4, secret=None)
        assert [one.result() for one in others] == [FOUR] * 3
        assert first.communicate()[0].decode().strip() == str(FOUR)
    for one in held:
        if one is not None:
            one.close()


def test_strangers_are_counted_and_told(
    pool: ThreadPoolExecutor, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "REPORTED", [])
    monkeypatch.setattr(admission, "HANDSHAKE_TIMEOUT", 0.2)
    address, draw = free(), random.Random(4)
    for _ in range(2):  # the second time nothing is told
        first = pool.submit(take_part, 0, 2, address)
        listening(address)
        for act in ("HTTP", "claims rank 1"):
            one = hostile.commit(act, address, draw)
            assert one is not None
            with one, contextlib.suppress(OSError):
                while one.recv(1000):
                    pass  # until it is turned away
        take_part(1, 2, address)
        first.result()
    said = capfd.readouterr().err
    assert said.count("turned away") == 1, said
    assert f"antiphon: {text_of(address)}: " in said
    first = pool.submit(take_part, 0, 3, address, timeout=0.8)
    listening(address)
    impostor = hostile.commit("claims rank 1", address, draw)
    with pytest.raises(TimedOut) as told:
        first.result()
    assert impostor is not None
    impostor.close()
    assert "2 of 3 processes did not come in 0.8 seconds, the first is rank 1; 2 strangers were turned away" in str(
        told.value
    )
    assert "one that did not prove to be rank 1 among them: give every process the same secret" in str(told.value)


# ---- secrets that differ, replays, a false rank 0 ----


def test_who_does_not_know_the_secret_stays_out(pool: ThreadPoolExecutor) -> None:
    address = free()
    first = pool.submit(take_part, 0, 2, address)
    with pytest.raises(Invalid, match=r"rank 1 cannot reach rank 0 at .*: what answers there does not know the secret"):
        take_part(1, 2, address, secret="another text of more than 16 bytes")
    assert take_part(1, 2, address) == first.result() == FOUR[:2]


def test_a_wrong_number_is_told_to_both_if_the_secret_is_known(pool: ThreadPoolExecutor) -> None:
    address = free()
    first = pool.submit(take_part, 0, 3, address)
    for call in (lambda: take_part(1, 4, address), first.result):
        with pytest.raises(Invalid, match="rank 1 expects 4 processes, rank 0 expects 3"):
            call()
    address = free()
    several = [pool.submit(take_part, rank, 3, address) for rank in (0, 1, 1)]
    told = [str(one.exception()) for one in several]
    assert sum("two processes say that they are rank 1" in text for text in told) == 2, told


def proxied(pool: ThreadPoolExecutor, address: tuple[str, int], door: socket.socket) -> tuple[bytes, bytes]:
    """What a guest and its host say in the handshake, by one who sits between them."""

    def exactly(one: socket.socket, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += one.recv(count - len(found))
        return found

    listening(address)
    near, _ = door.accept()
    with near, socket.create_connection(address) as far:
        one = exactly(near, hostile.HELLO)
        far.sendall(one)
        answer = exactly(far, hostile.ANSWER)
        near.sendall(answer)
        return one + exactly(near, hostile.PROOF), answer  # and then it hangs up


def test_what_was_recorded_is_worth_nothing_the_next_time(pool: ThreadPoolExecutor) -> None:
    address = free()
    first = pool.submit(take_part, 0, 2, address)
    with socket.create_server(("127.0.0.1", 0)) as door:
        between = door.getsockname()
        lost = pool.submit(take_part, 1, 2, between, timeout=0.8)
        said, answer = proxied(pool, address, door)
    with pytest.raises(AntiphonError):
        lost.result()
    with socket.create_connection(address) as again:  # the guest's frames, to the true host
        again.sendall(said)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while part := again.recv(1000):
                got += part
    assert len(got) <= hostile.ANSWER  # no verdict
    with socket.create_server(("127.0.0.1", 0)) as false:  # the host's frame, to a guest

        def answers() -> None:
            one, _ = false.accept()
            with one:
                one.recv(1000)
                one.sendall(answer)
                one.recv(1000)

        pool.submit(answers)
        with pytest.raises(Invalid, match="does not know the secret"):
            take_part(1, 2, false.getsockname())
    assert take_part(1, 2, address) == first.result()


def echo(said: bytes) -> bytes:
    return said + said[:24]


FALSE = {
    "an HTTP server": (lambda said: b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(200), "is not this program"),
    "a length of 2^32": (lambda said: b"\0\0\0\0\1\0\0\0" + bytes(200), "is not this program"),
    "an earlier version": (lambda said: hostile.hello(0, 2, version=1) + bytes(24), "another version"),
    "without the secret": (lambda said: hostile.hello(0, 2) + bytes(24), "does not know the secret"),
    "its own words": (echo, "does not know the secret"),
    "nothing": (lambda said: b"", "says nothing for 0.4 seconds|closes the connection"),
}


@pytest.mark.parametrize(("what", "holds"), crossed(FALSE, [True, False], 2))
def test_a_false_rank_0_is_found_out(
    what: str, holds: bool, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "ANSWER_TIMEOUT", 0.4)
    says, told = FALSE[what]
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(0.1)

        def serve() -> None:
            kept = []
            while not over.is_set():
                try:
                    one, _ = door.accept()
                except TimeoutError:
                    continue
                one.settimeout(1)
                one.sendall(says(one.recv(1000)))
                kept.append(one)
                if not holds:
                    one.close()
            for one in kept:
                one.close()

        false = pool.submit(serve)
        try:
            with pytest.raises((TransportFailed, Invalid), match=told):
                take_part(1, 2, door.getsockname())
        finally:
            over.set()
            false.result()


def test_nobody_at_the_address(pool: ThreadPoolExecutor) -> None:
    with pytest.raises(TimedOut, match=r"rank 0 does not listen at .*\(Connection refused\); start it, or fix it"):
        take_part(1, 2, free(), timeout=0.3)
    with pytest.raises(Invalid, match=r"address: .* is unknown here"):
        Star(1, 2, "no.such.name.invalid:80", 1.0, SECRET)


# ---- the handshake itself ----


def carried(one: Handshake, other: Handshake, changed: int = -1) -> list[Any]:
    """How both sides of a handshake end. The bit number `changed` of what goes over is turned round."""
    ends: list[Any] = [None, None]
    sides, said, wants = [one, other], [b"", b""], [0, 0]
    for i in (0, 1):
        said[i], wants[i] = next(sides[i])
    count = 0
    for turn in range(6):
        to, data = 1 - turn % 2, said[turn % 2]
        said[turn % 2] = b""
        if 0 <= changed - count < 8 * len(data):
            at = changed - count
            data = data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]
        count += 8 * len(data)
        if not data or ends[to] is not None:
            continue
        assert len(data) == wants[to] <= 256
        try:
            said[to], wants[to] = sides[to].send(data)
            if not wants[to]:
                sides[to].send(b"")
        except StopIteration as over:
            ends[to] = over.value
        except Stranger as stranger:
            ends[to] = stranger
            break
    return ends


BITS = 8 * (hostile.HELLO + hostile.ANSWER + hostile.PROOF + hostile.VERDICT)


def test_both_sides_are_told_the_same() -> None:
    key = derive_key(b"secret", b"door")
    told = list[int]()
    assert carried(
        connector_handshake(3, 5, 0, key), listener_handshake(0, 5, key, lambda who, count: (0, 0), told.append)
    ) == [(0, ""), (3, "")]
    assert told == [3]
    got = carried(
        connector_handshake(3, 5, 0, key), listener_handshake(0, 9, key, lambda who, count: (1, 9), told.append)
    )
    fault = "rank 3 expects 5 processes, rank 0 expects 9"
    assert got == [(0, fault), (3, fault)]


@given(st.integers(0, BITS - 1))
@settings(max_examples=examples(200), deadline=None)
def test_no_bit_can_be_turned_round(bit: int) -> None:
    """Of the nonces, ranks, proofs and verdicts: at least one side finds it out."""
    key = derive_key(b"secret", b"door")
    ends = carried(
        connector_handshake(3, 5, 0, key),
        listener_handshake(0, 5, key, lambda who, count: (0, 0), lambda who: None),
        bit,
    )
    assert any(isinstance(end, Stranger) for end in ends), ends


@given(st.binary(max_size=300))
@settings(max_examples=examples(200), deadline=None)
def test_a_host_reads_only_what_belongs_there(data: bytes) -> None:
    talk = listener_handshake(0, 4, b"key", lambda who, count: (0, 0), lambda who: None)
    _, wanted = next(talk)
    known = False
    with contextlib.suppress(Stranger):
        while not known and len(data) >= wanted:
            part, data = data[:wanted], data[wanted:]
            _, wanted = talk.send(part)
            known = not wanted
    assert not known


# ---- texts of those that are known ----


TEXTS = {
    "deep": ("[" * 100_000, "recursion|nest"),
    "an infinity": ('{"tcp": ["127.0.0.1", 1e999]}', "expected"),
    "no text": ("5", "expected"),
    "cut off": ('{"fault": "', "Unterminated"),
    "digits": ("9" * 5000, "digits"),
    "hosts": ('{"tcp": ["127.0.0.1", 70000], "host": "", "path": "", "secret": ""}', "expected the addresses"),
    "no host": ('{"tcp": ["\\ud800", 7], "host": "", "path": "", "secret": "00"}', "expected a numeric IP address"),
    "no number": ('{"tcp": ["127.0.0.1", 7], "host": "", "path": "", "secret": "xyz"}', "non-hexadecimal"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_what_is_no_card_is_told_by_its_rank(what: str) -> None:
    text, told = TEXTS[what]
    with pytest.raises(Invalid, match=rf"rank 1 sent what is no message of this program \(.*({told})"):
        connect_mesh(0, 2, lambda mine: [mine, text], timeout=5)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\0\0\0\0\1\0\0\0", r"rank 1 sent what is no message of this program \(a length of 4294967296 bytes"),
        (b"\1\0\0\0\0\0\0\0\xff", r"rank 1 sent what is no message of this program \('utf-8' codec"),
        (b"\0\0\0\x40\0\0\0\0abc", "a process is gone"),  # 2^30 bytes are claimed, and no memory is taken for them
    ],
)
def test_texts_have_a_greatest_length(pool: ThreadPoolExecutor, sent: bytes, told: str) -> None:
    address = free()
    first = pool.submit(take_part, 0, 2, address)
    with Star(1, 2, text_of(address), 20.0, SECRET) as star:
        star.connections[0].settimeout(5)
        star.connections[0].sendall(sent)
        star.connections[0].shutdown(socket.SHUT_WR)
        with pytest.raises(AntiphonError, match=told):
            first.result()


def test_what_rank_0_hands_out_is_looked_at(pool: ThreadPoolExecutor) -> None:
    for said in ("[" * 100_000, "{}", '["a"]', '["a", 5]', '"ab"'):
        address = free()
        other = pool.submit(take_part, 1, 2, address)
        with Star(0, 2, text_of(address), 20.0, SECRET) as star:
            texts.send_text(star.connections[1], said, time.monotonic() + 5)
            with pytest.raises(Invalid, match="rank 0 sent what is no message of this program"):
                other.result()


def test_a_text_that_comes_slowly_ends_with_the_time(pool: ThreadPoolExecutor) -> None:
    address = free()
    first = pool.submit(take_part, 0, 2, address, timeout=0.8)
    with Star(1, 2, text_of(address), 20.0, SECRET) as star:
        star.connections[0].sendall((1000).to_bytes(8, "little"))
        while not first.done():
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                star.connections[0].send(b"x")
    with pytest.raises(TimedOut, match=r"did not all answer in 0\.8 seconds"):
        first.result()


# ---- where the secret is from ----


def test_processes_of_one_user_at_the_loopback_need_no_secret(pool: ThreadPoolExecutor) -> None:
    address = free()
    others = job(pool, address, 4, secret=None)
    assert take_part(0, 4, address, secret=None) == FOUR
    assert [one.result() for one in others] == [FOUR] * 3
    path = Path(os.environ["XDG_RUNTIME_DIR"], "antiphon-secret")
    assert [path.name] == os.listdir(path.parent)  # no drafts stay behind
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert job_secret(None, True, "") == job_secret(None, True, "")
    assert path.read_text().strip() not in repr(job_secret(None, True, ""))


def test_all_find_the_same_secret_whoever_makes_it(pool: ThreadPoolExecutor) -> None:
    assert len({one.data for one in pool.map(lambda _: job_secret(None, True, ""), range(64))}) == 1


def test_an_address_that_others_can_reach_needs_a_secret() -> None:
    for address in ("0.0.0.0:29400", "192.0.2.1:29400", "[2001:db8::1]:29400"):
        for rank in (0, 1):
            with pytest.raises(Invalid, match=r"can be reached from elsewhere.*ANTIPHON_SECRET"):
                antiphon.comm.connect(rank=rank, ranks=2, address=address, timeout=5)


def test_the_order_of_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given_secret() is None
    path = tmp_path / "secret"
    path.write_text("that of the file\n")
    path.chmod(0o600)
    monkeypatch.setenv("ANTIPHON_SECRET_FILE", str(path))
    assert given_secret() == Secret(b"that of the file", "$ANTIPHON_SECRET_FILE")
    monkeypatch.setenv("ANTIPHON_SECRET", "that of the environment")
    assert given_secret() == Secret(b"that of the environment", "$ANTIPHON_SECRET")
    assert given_secret("that of the program") == Secret(b"that of the program", "the argument secret=")
    for short in ("", "short", " " * 40, "x" * 5000):
        with pytest.raises(Invalid, match="a secret has 16 to 4096 bytes"):
            given_secret(short)


def test_a_file_that_others_can_read_or_change_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    monkeypatch.setenv("ANTIPHON_SECRET_FILE", str(path))
    for make, told in (
        (lambda: None, "cannot be read"),
        (lambda: path.write_text(SECRET), "others can read or write it; chmod 600"),
        (lambda: os.mkfifo(path, 0o600), "is no file"),
        (lambda: path.mkdir(mode=0o700), "is no file"),
    ):
        if "no file" in told:
            path.unlink()
        make()
        if path.is_file():
            path.chmod(0o640)
        with pytest.raises(Invalid, match=told):
            given_secret()
    monkeypatch.setenv("ANTIPHON_SECRET_FILE", "/etc/shadow" if os.geteuid() else str(tmp_path))
    with pytest.raises(Invalid, match="ANTIPHON_SECRET_FILE"):
        given_secret()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_other_users_are_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    os.chown(path, 12345, -1)
    monkeypatch.setenv("ANTIPHON_SECRET_FILE", str(path))
    with pytest.raises(Invalid, match="belongs to another user"):
        given_secret()
    monkeypatch.delenv("ANTIPHON_SECRET_FILE")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    own = tmp_path / f"antiphon-{os.geteuid()}"
    own.mkdir(mode=0o700)
    os.chown(own, 12345, -1)
    with pytest.raises(Invalid, match="is no folder that only this user can enter"):
        job_secret(None, True, "")


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(os.environ["XDG_RUNTIME_DIR"]).chmod(0o755)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert Path(job_secret(None, True, "").source).parent == tmp_path / f"antiphon-{os.geteuid()}"
    (tmp_path / f"antiphon-{os.geteuid()}").chmod(0o777)
    with pytest.raises(Invalid, match="is no folder that only this user can enter"):
        job_secret(None, True, "")


# ---- the doors of the mesh ----


def meshed(
    pool: ThreadPoolExecutor, meeting: Meeting, ranks: int, secrets: Sequence[Secret | None], timeout: float = 20.0
) -> list[Any]:
    def go(rank: int) -> Any:
        return connect_mesh(rank, ranks, meeting.of(rank), address="127.0.0.1", timeout=timeout, secret=secrets[rank])

    return [pool.submit(go, rank) for rank in range(ranks)]


@pytest.mark.parametrize("act", hostile.ACTS)
def test_strangers_at_the_doors_of_the_mesh(act: str, pool: ThreadPoolExecutor) -> None:
    held, draw = list[socket.socket | None](), random.Random(act)

    def before(cards: list[str]) -> None:
        for card in cards:
            where = json.loads(card)["tcp"]
            held.extend(hostile.commit(act, (where[0], where[1]), draw) for _ in range(3))

    found = [one.result() for one in meshed(pool, Meeting(4, before), 4, [None] * 4)]
    for rank, row in enumerate(found):
        for other, one in enumerate(row):
            if one is not None:
                one.sendall(bytes([rank]))
                assert found[other][rank].recv(1) == bytes([rank])
    for one in [*held, *(one for row in found for one in row)]:
        if one is not None:
            one.close()


def test_who_knows_the_cards_but_not_the_secret_stays_out_of_the_mesh(pool: ThreadPoolExecutor) -> None:
    """As one who reads the store of a PyTorch group."""
    job, other = Secret(b"that of the job, long enough", "here"), Secret(b"that of another one", "there")
    futures = meshed(pool, Meeting(2), 2, [job, other], 0.5)
    with pytest.raises(Invalid, match=r"does not know the secret.*give every process the same secret \(here: there\)"):
        futures[1].result()
    with pytest.raises(
        Invalid, match=r"give every process the same secret \(here: none, \$ANTIPHON_SECRET is not set\)"
    ):
        meshed(pool, Meeting(2), 2, [job, None], 0.5)[1].result()
    for one in meshed(pool, Meeting(2), 2, [job, job]):
        for each in one.result():
            if each is not None:
                each.close()


# ---- PyTorch ----


GROUPS = """
import datetime, json, os, sys
import torch, torch.distributed as dist
import antiphon.torch
from antiphon.errors import AntiphonError

def take_part(rank, folder, secret, timeout):
    os.environ.update(ANTIPHON_SECRET=secret, ANTIPHON_INTERFACE="lo")
    try:
        dist.init_process_group("antiphon", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                                timeout=datetime.timedelta(seconds=timeout))
        x = torch.ones(5)
        dist.all_reduce(x)
        dist.destroy_process_group()
        return str(x.sum().item())
    except AntiphonError as error:
        return str(error)

for folder, timeout, *secrets in json.loads(sys.argv[1]):
    for rank in range(2):
        if not os.fork():
            said = take_part(rank, folder, secrets[rank], timeout)
            os.write(1, json.dumps({"folder": folder, "rank": rank, "said": said}).encode() + bytes([10]))
            os._exit(0)
for _ in range(4):  # both groups side by side: one only waits
    os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_the_secret_of_a_pytorch_group_is_more_than_what_its_store_knows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folders = [str(tmp_path / name) for name in ("same", "other")]
    cases = [(folders[0], 60.0, SECRET, SECRET), (folders[1], 2.0, SECRET, SECRET[::-1])]
    for folder in folders:
        os.mkdir(folder)
    command = [sys.executable, "-W", "ignore", "-c", GROUPS, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    told = {(row["folder"], row["rank"]): row["said"] for row in rows}
    assert len(told) == 4, done.stderr
    assert told[folders[0], 0] == told[folders[0], 1] == "10.0"
    assert "does not know the secret" in told[folders[1], 1]
    assert "ANTIPHON_SECRET" in told[folders[1], 1]
    assert "did not come" in told[folders[1], 0]
    assert "one that did not prove to be rank 1" in told[folders[1], 0]
