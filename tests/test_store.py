"""The store of plans: what is put is found again by every machine that is the same, and nothing in it is trusted."""

import re
import threading
from hashlib import sha256
from json import loads
from pathlib import Path

import numpy as np
import pytest
from msgspec import json
from quick import crossed, in_turn

from antiphon.cli import run
from antiphon.core.collective import Collective
from antiphon.core.reshape import relabel
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.reproduce.blink_allocations import unique_allocations
from antiphon.select import machine_of
from antiphon.select.store import Answer, Question, Store, answer

SIZES = (1000, 10**6)
SEARCH = {"planners": ("ring", "trees", "relay"), "effort": 1.0}


def asked(machine: Topology, kind: str = "allreduce", root: int | None = None) -> Question:
    wanted = Collective(kind, machine.ranks, (), () if root is None else (root,))
    return Question(machine, wanted, SIZES, "alpha-beta", search=SEARCH)


def planned(question: Question, store: Store) -> Answer:
    return answer(question, store, workers="none")


def shuffled(machine: Topology, seed: int) -> tuple[Topology, list[int]]:
    """The machine with other numbers for its ranks, and the new number of each."""
    numbers = np.random.default_rng(seed).permutation(machine.ranks)
    return relabel(machine, [*numbers, *range(machine.ranks, machine.nodes)]), numbers.tolist()


@pytest.mark.parametrize(
    ("kind", "spec"), crossed(["allreduce", "broadcast", "alltoall"], ["dgx1v", "dgx1p", "hgx-h100", "ring:ranks=5"])
)
def test_an_isomorphic_machine_gets_its_plan_in_its_own_numbers(spec: str, kind: str, tmp_path: Path) -> None:
    machine, store = machine_of(spec), Store(tmp_path)
    root = 1 if kind == "broadcast" else None
    first = planned(asked(machine, kind, root), store)
    for seed in range(3):
        other, number = shuffled(machine, seed)
        found = store.get(asked(other, kind, None if root is None else number[root]))
        assert found is not None
        assert found.stored
        assert found.rows == first.rows
        assert found.plan.collective.roots == (() if root is None else (number[root],))
        for entry in found.plan.entries:
            assert verify(entry.schedule, found.plan.topology).fault is None


@pytest.mark.slow
def test_all_allocations_of_both_dgx1_are_planned_once_each(tmp_path: Path) -> None:
    store, stored = Store(tmp_path), []
    classes = [a.machine for box in ("dgx1p", "dgx1v") for a in unique_allocations(machine_of(box))]
    for machine in classes:
        stored += [planned(asked(shuffled(machine, seed)[0]), store).stored for seed in range(20)]
    assert len(classes) == 60
    assert stored.count(False) == 60
    assert stored.count(True) == 60 * 19


def test_the_address_tells_apart_what_has_another_answer() -> None:
    machine = machine_of("dgx1v")
    questions = [
        asked(machine), asked(machine, "allgather"), asked(machine_of("dgx1p")), asked(machine, "broadcast", 0),
        Question(machine, Collective("allreduce", 8, (0, 1, 2, 3)), SIZES, "alpha-beta", search=SEARCH),
        Question(machine, Collective("allreduce", 8), (1000,), "alpha-beta", search=SEARCH),
        Question(machine, Collective("allreduce", 8), SIZES, "calls", search=SEARCH),
        Question(machine, Collective("allreduce", 8), SIZES, "alpha-beta", search={**SEARCH, "effort": 2.0}),
    ]  # fmt: skip
    assert len({question.address for question in questions}) == len(questions)
    # the two halves of the box are alike, and 4 of one half are not alike to 2 and 2
    halves = [
        Question(machine, Collective("allreduce", 8, m), SIZES) for m in ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 4, 6))
    ]
    assert halves[0].address == halves[1].address != halves[2].address


@pytest.mark.parametrize("wanted", [
    Collective("allgather", 4, weights=np.array([1, 2, 3, 4])), Collective("scatter", 4, (), (0, 1)),
])  # fmt: skip
def test_what_cannot_be_stored_is_refused(wanted: Collective) -> None:
    with pytest.raises(Unsupported, match="leave out the store"):
        Question(machine_of("ring:ranks=4"), wanted, SIZES)


def damages(data: bytes, other: bytes) -> dict[str, bytes]:
    """What somebody who may write to the store can put there."""
    file = json.decode(data)
    rows = file["rows"]
    return {
        "no JSON": data[:100],
        "another format": data.replace(b'"format":4', b'"format":2', 1),
        "a faster time": json.encode({**file, "rows": [{**rows[0], "seconds": rows[0]["seconds"] / 2}, *rows[1:]]}),
        "a bound that its time beats": json.encode({**file, "rows": [{**rows[0], "least_seconds": 1.0}, *rows[1:]]}),
        "other sizes": json.encode({**file, "rows": rows[:1]}),
        "the plan of another machine": json.encode({**file, "plan": json.decode(other)["plan"]}),
        "claims of no tuning": data.replace(b'"bottleneck"', b'"neck"'),
        "claims of other types": data.replace(b'"gap_model":', b'"gap_model":1,"without":'),
        "no plan": json.encode({**file, "plan": {}}),
    }


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, str, bytes, bytes]:
    """The answer for a ring of 4, its entry's name and content, and the content of that of a ring of 3."""
    folder = tmp_path_factory.mktemp("store")
    right, _ = (planned(asked(machine_of(f"ring:ranks={n}"), "allgather"), Store(folder / str(n))) for n in (4, 3))
    (file,), (other,) = ((folder / n).glob("*.plan") for n in "43")
    return right, file.name, *(path.read_bytes().partition(b"\n")[2] for path in (file, other))


def sealed(content: bytes, file: str) -> bytes:
    """An entry with the digest of address and content in its first line."""
    return sha256(file.removesuffix(".plan").encode() + content).hexdigest().encode() + b"\n" + content


@pytest.mark.parametrize(
    "name", in_turn(damages(b'{"format":4,"rows":[{"seconds":1}],"plan":{"entries":[0]}}', b'{"plan":1}'), 3)
)
def test_a_damaged_entry_is_refused_and_planned_anew(
    name: str, entries: tuple[Answer, str, bytes, bytes], tmp_path: Path
) -> None:
    store, question = Store(tmp_path), asked(machine_of("ring:ranks=4"), "allgather")
    right, file, data, other = entries
    (tmp_path / file).write_bytes(sealed(damages(data, other)[name], file))
    with pytest.raises(Invalid, match="is damaged"):
        store.get(question)
    again = planned(question, store)
    assert not again.stored
    assert again.rows == right.rows
    assert store.get(question) is not None


def test_figures_that_are_not_computed_again_are_not_trusted(
    entries: tuple[Answer, str, bytes, bytes], tmp_path: Path
) -> None:
    """Such as speedups, and lower bounds at other sizes; one bit, one digit, or another entry under this name."""
    right, file, data, other = entries
    entry = sealed(data, file)
    worse_gap = data.replace(b'"latency_gap": ', b'"latency_gap": 1')
    assert worse_gap != data
    for damaged in (
        entry.replace(data, worse_gap), entry[:-1], b"",
        sealed(other, "0" * 64), bytes([*entry[:-9], entry[-9] ^ 1, *entry[-8:]]),
    ):  # fmt: skip
        (tmp_path / file).write_bytes(damaged)
        store, question = Store(tmp_path), asked(machine_of("ring:ranks=4"), "allgather")
        with pytest.raises(Invalid, match="is damaged"):
            store.get(question)
    assert planned(question, store).rows == right.rows
    assert store.get(question) is not None


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_what_is_no_file_is_damaged_and_replaced(kind: str, tmp_path: Path) -> None:
    store, question = Store(tmp_path), asked(machine_of("ring:ranks=4"), "allgather")
    path = tmp_path / f"{question.address}.plan"
    path.mkdir() if kind == "directory" else path.symlink_to(tmp_path / "none" / "file")
    if kind == "directory":
        assert ["is a directory" in entry.damaged for entry in store.entries()] == [True]
    assert not planned(question, store).stored
    assert store.get(question) is not None
    path.unlink()
    path.mkdir()
    assert len(store.collect()) == 1
    assert not path.exists()


@pytest.mark.parametrize(
    "request_words",
    in_turn([
        "allgather ring:ranks=4 --planner trees --planner ring --nbytes 1KB:1MB",  # no model of NCCL
        "allreduce dgx1v --planner ring --planner recursive-doubling --nbytes 1KB:1GB",  # some sizes are left to NCCL
        "allreduce hgx-h100 --planner nvls --planner ring --nbytes 64KB:16MB",  # uses switches
    ]),
)  # fmt: skip
def test_tune_prints_the_same_with_and_without_a_store(
    request_words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, values = [], []
    for options in ([], ["--store", str(tmp_path)], ["--store", str(tmp_path)]):
        words = ["tune", *request_words.split(), "--workers", "1", *options]
        assert run(words) == 0
        # the last sentence says where the plans come from
        texts.append(re.split(r"\n +(?:\d+ schedules|Plans)\b", capsys.readouterr().out)[0])
        assert run([*words, "--json"]) == 0
        value = loads(capsys.readouterr().out)
        values.append((value["verdict"], [{**r, "runners_up": []} for r in value["ranges"]]))
    assert texts[0] == texts[1] == texts[2]
    assert values[0] == values[1] == values[2]


def test_what_a_store_cannot_answer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--explain", "--no-nccl"):
        assert run(["tune", "allreduce", "ring:ranks=4", "--store", str(tmp_path), option]) == 2
        assert f"{option}: cannot be combined with --store" in capsys.readouterr().err


def test_writers_at_the_same_time_leave_a_whole_entry(tmp_path: Path) -> None:
    store, question = Store(tmp_path), asked(machine_of("ring:ranks=4"))
    right = planned(question, store)
    writers = [threading.Thread(target=store.put, args=(question, right)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for _ in range(20):
        assert store.get(question) is not None
    for writer in writers:
        writer.join()
    assert [path.suffix for path in tmp_path.iterdir()] == [".plan"]


def test_a_location_of_fsspec_is_a_store(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="pip install 'antiphon[store]'")
    store, question = Store(f"memory://{tmp_path.name}"), asked(machine_of("ring:ranks=4"))
    assert list(store.entries()) == []
    assert store.get(question) is None
    planned(question, store)
    assert planned(question, store).stored
    (entry,) = store.entries()
    assert (entry.machine, entry.collective, entry.sizes) == ("ring:ranks=4", "allreduce", (1000, 10**6))
    with pytest.raises(Invalid, match="store nowhere://x"):
        Store("nowhere://x")


def test_collecting_deletes_damaged_old_and_too_many_entries(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for ranks in (3, 4, 5):
        planned(asked(machine_of(f"ring:ranks={ranks}")), store)
    (tmp_path / f"{'0' * 64}.plan").write_bytes(b"x")
    assert [bool(entry.damaged) for entry in store.entries()].count(True) == 1
    assert [entry.damaged != "" for entry in store.collect()] == [True]
    newest = list(store.entries())[-1]
    assert len(store.collect(max_bytes=newest.nbytes)) == 2
    assert list(store.entries()) == [newest]
    assert store.collect(max_age=0.0) == [newest]


def test_a_store_that_cannot_be_written_is_refused_before_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error would come after the planning, and take the plan with it."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was planned")

    monkeypatch.setattr("antiphon.select.store.tune", refuse)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Invalid, match="is not a directory and cannot be made"):
        planned(asked(machine_of("ring:ranks=3")), Store(tmp_path / "file"))


def test_a_place_without_a_store_is_no_empty_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in ("nowhere", "file"):
        for command in ("list", "gc"):
            assert run(["store", command, "--store", str(tmp_path / place)]) == 1
            assert "there is no such folder; `antiphon tune COLL TOPO --store " in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(["store", "list", "--store", str(tmp_path / "empty")]) == 0
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    assert run(["store", "list"]) == 0  # the default one begins empty
