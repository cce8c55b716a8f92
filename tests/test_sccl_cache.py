"""The cache of what engines decided: it serves machines numbered otherwise, believes nothing, is never in the way."""

import contextlib
import gzip
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from entries import sccl
from quick import examples, in_turn
from sccl_cases import case
from test_sccl_canonical import Watched

from antiphon.core.ksync.instance import instance_of
from antiphon.core.request import Request
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import EffortSpent, Invalid
from antiphon.planners.synth import auto
from antiphon.planners.synth import cache as caching
from antiphon.planners.synth.auto import Solved, decide_candidate
from antiphon.planners.synth.cache import Cache, CachedAnswer, cache_for_option, is_algorithm
from antiphon.planners.synth.canonical import pose_canonically
from antiphon.planners.synth.search import Impossible, SearchState
from antiphon.planners.synth.task import Answer
from antiphon.select import collective
from antiphon.topologies import topology


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    return tmp_path / "sccl"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def frontier_of(machine: Topology, kind: str, **options: Any) -> list[object]:
    """All that it says, and the schedules, verified."""
    found: list[object] = []
    for made in sccl(Request(machine, collective(kind, machine)), **options):
        verify(made, machine).or_raise()
        found.append((made.provenance, made.step.tolist(), made.chunk.tolist(), made.src.tolist(), made.dst.tolist()))
    return found


def a_search(cache: Cache | None, seed: int = 0) -> SearchState:
    machine = topology("dgx1v_sccl")
    return SearchState(
        pose_canonically(instance_of(machine, collective("allgather", machine))).instance, seed, cache=cache
    )


POINT = (2, 2, 3)  # parts, steps, rounds of an allgather on the DGX-1: one that an engine finds


def test_what_was_decided_is_not_sought_again(folder: Path, watched: Watched) -> None:
    machine = topology("dgx1v_sccl")
    first = frontier_of(machine, "allgather", steps=3)
    assert watched.taken()
    assert len(list(folder.iterdir())) == len(first) == 2
    assert frontier_of(machine, "allgather", steps=3) == first
    assert not watched.taken()
    assert frontier_of(machine, "allgather", steps=3, cache=False) == first
    assert watched.taken()


def refutable(cache: Cache | None) -> tuple[SearchState, tuple[int, int, int]]:
    """A problem that the program over time admits and that only a search refutes."""
    for seed in range(100, 200):  # none of those before
        asked = pose_canonically(case(seed, most_ranks=5, most_chunks=8)).instance
        point = 1, asked.least_steps + 1, asked.least_steps + 1
        decided = decide_candidate(SearchState(asked), *point)
        if isinstance(decided, Impossible) and decided.how == "search" and decided.resolution is not None:
            return SearchState(asked, cache=cache), point
    raise AssertionError("none was found")


def test_a_refutation_by_search_is_kept_with_its_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, point = refutable(Cache(tmp_path))
    first = decide_candidate(search, *point)
    assert isinstance(first, Impossible)
    assert first.resolution is not None
    for engine in ("solve_flow", "find_refutation", "solve_sat", "has_single_destinations"):
        monkeypatch.setattr(auto, engine, None)
    with pytest.raises(TypeError):
        decide_candidate(SearchState(search.instance), *point)
    assert decide_candidate(SearchState(search.instance, cache=Cache(tmp_path)), *point) == first


def test_what_only_an_engine_says_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "sccl")
    with monkeypatch.context() as change:
        change.setattr(auto, "has_single_destinations", lambda instance: True)
        change.setattr(auto, "solve_flow", lambda *args: Answer(None, refuted=True))
        change.setattr(auto, "find_refutation", lambda *args: (None, 0))
        assert decide_candidate(a_search(cache), *POINT) == Impossible("search")
    assert not cache.folder.exists()
    assert isinstance(decide_candidate(a_search(cache), *POINT), Solved)


def test_an_impossible_that_is_not_proved_is_not_believed(tmp_path: Path) -> None:
    """A file as if we wrote it, about a point that exists: without a proof, with that of another, with a false one."""
    other, point = refutable(None)
    stolen = decide_candidate(other, *point)
    assert isinstance(stolen, Impossible)
    assert stolen.resolution is not None
    parts, steps, rounds = POINT
    renamed = {**stolen.resolution, "parts": parts, "steps": steps, "rounds": rounds}
    for proof in (None, {}, stolen.resolution, renamed, {**renamed, "proof": ""}, {**renamed, "split": [1, 2]}):
        cache, search = Cache(tmp_path), a_search(None)
        cache.put(search.cache_question(*POINT), CachedAnswer([1], resolution=proof))
        assert cache.get(search.cache_question(*POINT)) is None, proof
        assert isinstance(decide_candidate(a_search(cache), *POINT), Solved)


def test_answers_differ_by_what_was_asked(tmp_path: Path) -> None:
    searches = [a_search(None), a_search(None, seed=1)]
    machine = topology("dgx1p")  # other bandwidths
    searches.append(SearchState(pose_canonically(instance_of(machine, collective("allgather", machine))).instance))
    names = {search.cache_question(*POINT).name for search in searches}
    names |= {searches[0].cache_question(*point).name for point in ((1, 2, 3), (2, 3, 3), (2, 2, 4))}
    assert len(names) == 6
    machine = topology("dgx1v")  # the same, numbered otherwise
    alike = SearchState(pose_canonically(instance_of(machine, collective("allgather", machine))).instance)
    assert searches[0].cache_question(*POINT).name == alike.cache_question(*POINT).name


def test_another_release_does_not_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = a_search(None).cache_question(*POINT).name
    caching.producer_versions.cache_clear()
    with monkeypatch.context() as change:
        change.setattr("importlib.metadata.version", lambda name: "0" if name == "igraph" else "1")
        assert a_search(None).cache_question(*POINT).name != before
    caching.producer_versions.cache_clear()
    assert a_search(None).cache_question(*POINT).name == before


def test_whoever_has_fewer_turns_finds_what_he_would_have_found_himself(tmp_path: Path) -> None:
    cache, search = Cache(tmp_path), a_search(None)
    found = decide_candidate(search, *POINT)
    assert isinstance(found, Solved)
    cache.put(search.cache_question(*POINT), CachedAnswer([1, 2, 3], found.engine, list(found.moves)))
    assert decide_candidate(a_search(cache), *POINT, turns=2) is None
    assert decide_candidate(a_search(cache), *POINT, turns=3) == found


@pytest.mark.parametrize("effort", in_turn([0.01, 0.05, 0.2], 3))
def test_what_an_answer_cost_is_paid_again(effort: float, folder: Path) -> None:
    """However little effort there is, its end comes where it comes without the cache."""

    def told(machine: Topology, cache: bool) -> list[object]:
        found: list[object] = []
        try:
            for made in sccl(Request(machine, collective("broadcast", machine), effort=effort), cache=cache):
                found.append((made.provenance, made.step.tolist(), made.chunk.tolist()))
        except EffortSpent as error:
            found.append(str(error))
        return found

    machine = topology("torus:dims=3x3")
    fresh = told(machine, False)
    assert "its effort is spent" in str(fresh[-1])
    richly = sccl(Request(machine, collective("broadcast", machine), effort=1.0), steps=5)
    with contextlib.suppress(EffortSpent):
        assert [made.steps for made in richly]
    assert any(folder.iterdir())
    assert told(machine, True) == told(machine, True) == fresh


# ---- what lies there may be anything ----


def kept_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def rewritten(path: Path, forged: Any) -> None:
    """The file with this in it instead, and all else as it was."""
    told = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(msgspec.json.encode(told | forged)))


def answered(path: Path, answer: CachedAnswer) -> None:
    """The file just as if this had been found."""
    path.unlink()
    Cache(path.parent).put(a_search(None).cache_question(*POINT), answer)
    assert path.exists()


def forgeries() -> Iterator[Any]:
    yield "cut off", lambda path: path.write_bytes(path.read_bytes()[:-30])
    yield "empty", lambda path: path.write_bytes(b"")
    yield "foreign", lambda path: path.write_bytes(b"\xff\xfe not ours")
    yield "other JSON", lambda path: path.write_bytes(b'{"format": 1}')
    yield "nested", lambda path: path.write_bytes(b"[" * 10**6)
    yield "a link to nowhere", lambda path: (path.unlink(), path.symlink_to(path.parent / "none"))
    yield "another version", lambda path: rewritten(path, {"format": 2})
    yield "another question", lambda path: rewritten(path, {"question": "0" * 64})
    yield "changed", lambda path: rewritten(path, {"answer": {"prices": [1], "engine": "x", "moves": None}})
    yield "another sum", lambda path: rewritten(path, {"check": "0" * 64})
    yield "no moves", lambda path: answered(path, CachedAnswer([1], "sat", []))
    yield "a wrong move", lambda path: answered(path, CachedAnswer([1], "sat", [(0, 0, (10**6,), 0)]))
    yield "a wrong kind", lambda path: answered(path, CachedAnswer([1], "sat", [(99, 0, (0,), 0)]))


@pytest.mark.parametrize(
    ("name", "forge"), in_turn(forgeries(), 6), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_no_answer_is_sought_anew_and_replaced(name: str, forge: Any, tmp_path: Path, watched: Watched) -> None:
    cache = Cache(tmp_path / "sccl")
    found = decide_candidate(a_search(cache), *POINT)
    watched.taken()
    path = kept_file(cache.folder)
    forge(path)
    assert decide_candidate(a_search(cache), *POINT) == found
    assert watched.taken(), name
    assert decide_candidate(a_search(cache), *POINT) == found
    assert not watched.taken()


def test_moves_are_checked_one_by_one() -> None:
    """Whatever is taken from the moves of an algorithm, or changed in one, leaves none, and it needs its rounds."""
    search = a_search(None)
    asked = search.cache_question(*POINT)
    found = decide_candidate(search, *POINT)
    assert isinstance(found, Solved)
    assert is_algorithm(asked, found.moves)
    assert not is_algorithm(replace(asked, rounds=2), found.moves)
    assert not is_algorithm(replace(asked, parts=3), found.moves)
    assert not is_algorithm(replace(asked, steps=1), found.moves)
    rng = random.Random(0)
    for place, (kind, chunk, path, step) in enumerate(found.moves):
        rest = [*found.moves[:place], *found.moves[place + 1 :]]
        assert not is_algorithm(asked, rest)
        assert not is_algorithm(asked, [*found.moves, found.moves[place]])  # brought twice
        assert not is_algorithm(asked, [*rest, (kind, chunk + 1, path, step)])
        assert not is_algorithm(asked, [*rest, (kind, chunk, path, step - 2)])
        assert not is_algorithm(asked, [*rest, (kind, chunk, (*path, rng.randrange(16)), step)])
        assert not is_algorithm(asked, [*rest, (kind, chunk, (), step)])


def test_paths_through_switches_are_checked() -> None:
    machine = topology("star:ranks=3")
    search = SearchState(pose_canonically(instance_of(machine, collective("broadcast", machine))).instance)
    asked = search.cache_question(1, 1, 2)
    found = decide_candidate(search, 1, 1, 2)
    assert isinstance(found, Solved)
    assert is_algorithm(asked, found.moves)
    (kind, chunk, path, step), other = found.moves
    for wrong in (path[:1], path[1:], path[::-1], path + other[2]):
        assert not is_algorithm(asked, [(kind, chunk, wrong, step), other])
    roomy = replace(asked, rounds=9)
    assert is_algorithm(roomy, found.moves)
    assert not is_algorithm(roomy, [*found.moves, (kind, chunk, path[:1], step)])  # left at the switch


# ---- folders ----


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place() -> Path | None:
        found = cache_for_option(True)
        return found and found.folder

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANTIPHON_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert place() == tmp_path / ".cache" / "antiphon" / "sccl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert place() == tmp_path / ".cache" / "antiphon" / "sccl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert place() == tmp_path / "xdg" / "antiphon" / "sccl"
    monkeypatch.setenv("ANTIPHON_CACHE", "")
    assert place() == tmp_path / "xdg" / "antiphon" / "sccl"
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "mine"))
    assert place() == tmp_path / "mine" / "sccl"
    assert cache_for_option(False) is cache_for_option("false") is None
    assert cache_for_option("true") is not None
    monkeypatch.setenv("ANTIPHON_CACHE", "off")
    assert place() is None
    with pytest.raises(Invalid, match="cache: expected true or false, got 3"):
        cache_for_option(3)


def test_a_folder_that_cannot_be_used_is_no_cache(tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "sccl")
    for _ in range(2):
        assert isinstance(decide_candidate(a_search(cache), *POINT), Solved)
        assert watched.taken()
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_file_that_cannot_be_written_is_let_be(tmp_path: Path) -> None:
    cache, search = Cache(tmp_path), a_search(None)
    (tmp_path / f"{search.cache_question(*POINT).name}.json.gz").mkdir()
    assert isinstance(decide_candidate(a_search(cache), *POINT), Solved)


def test_the_least_recently_used_are_removed(tmp_path: Path) -> None:
    search = a_search(None)
    found = decide_candidate(search, *POINT)
    assert isinstance(found, Solved)
    moves = list(found.moves)
    asked = [search.cache_question(2, 2, rounds) for rounds in range(3, 9)]
    (tmp_path / "notes.txt").write_text("somebody's own " * 1000)
    roomy = Cache(tmp_path)
    for age, one in enumerate(asked[:5]):
        roomy.put(one, CachedAnswer([age], moves=moves))
        os.utime(tmp_path / f"{one.name}.json.gz", ns=(age, age))
    left_over = tmp_path / ".antiphon-00.tmp"
    left_over.write_bytes(b"x" * 10)
    os.utime(left_over, ns=(0, 0))
    assert roomy.get(asked[0]) == CachedAnswer([0], moves=moves)  # used just now
    size = (tmp_path / f"{asked[0].name}.json.gz").stat().st_size
    Cache(tmp_path, max_bytes=3 * size + size // 2).put(asked[5], CachedAnswer([5], moves=moves))
    assert [roomy.get(one) is not None for one in asked] == [True, False, False, False, True, True]
    assert (tmp_path / "notes.txt").exists()
    assert not left_over.exists()


def test_several_may_write_at_once(tmp_path: Path) -> None:
    search = a_search(None)
    found = decide_candidate(search, *POINT)
    assert isinstance(found, Solved)
    asked, answer = search.cache_question(*POINT), CachedAnswer([1], found.engine, list(found.moves))
    Cache(tmp_path).put(asked, answer)
    seen: list[CachedAnswer | None] = []

    def work(most: int) -> None:
        mine = Cache(tmp_path, most)
        for _ in range(30):
            mine.put(asked, answer)
            seen.append(mine.get(asked))

    workers = [threading.Thread(target=work, args=(2**28,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [answer] * 120
    assert len(list(tmp_path.iterdir())) == 1


def test_any_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    cache, kept = Cache(tmp_path), set[str]()
    for seed in range(examples(40)):
        asked = pose_canonically(case(seed, most_ranks=5, most_chunks=8)).instance
        first = SearchState(asked, cache=cache)
        point = 1, asked.least_steps + 1, asked.least_steps + 3
        decided = decide_candidate(first, *point)
        if isinstance(decided, Solved) or (isinstance(decided, Impossible) and decided.resolution is not None):
            assert decide_candidate(SearchState(asked, cache=cache), *point) == decided
            kept.add(f"{first.cache_question(*point).name}.json.gz")
    assert kept == {path.name for path in tmp_path.iterdir()}
    assert len(kept) > examples(40) // 2
