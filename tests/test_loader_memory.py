"""Memory of every loader: at most 20 times the file, whatever it is full of, or the file is refused."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.core.serialize import loads
from antiphon.errors import Invalid

BENCH = Path(__file__).resolve().parents[1] / "bench"


def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        spec = importlib.util.spec_from_file_location("bench_loaders", BENCH / "bench_loaders.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_loaders"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    return module


LOADERS = bench()


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if number else [])
    for number, name in enumerate(LOADERS.SHAPES) if not name.startswith("gzip")
])  # fmt: skip
@pytest.mark.parametrize("size", [4 * 10**5, pytest.param(2 * 10**6, marks=pytest.mark.slow)])
def test_twenty_times_the_file(name: str, size: int) -> None:
    LOADERS.loader(LOADERS.SHAPES[name][0])  # so that the fork has its modules
    found = LOADERS.forked(name, size)
    whatever_the_size = 2**22 if size < 10**6 else 0  # weighs little where the file is large
    assert found["peak"] <= LOADERS.MOST * found["bytes"] + whatever_the_size, found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize("name", [name for name in LOADERS.SHAPES if name.startswith("gzip")])
def test_what_is_unpacked_has_a_limit(name: str) -> None:
    found = LOADERS.forked(name, 14 * 10**5)
    assert "unpacks to more than 134217728 bytes" in str(found["said"])
    assert found["peak"] < 2.5 * 2**27


def text(claims: str) -> bytes:
    return str(LOADERS.plan(f"{LOADERS.CHUNKS},{LOADERS.EMPTY}", f',"claims":{claims}')).encode()


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ('{"a":1e999}', "out of range"), ('{"a":' + "9" * 100_000 + "}", "not valid JSON|out of range|finite"),
        ('{"a":NaN}', "not valid JSON"), ('{"a":1,"a":2}', "stands twice"),
        ('{"a":"}","a":2}', "stands twice"), ('{"b":{"a":[],"a" :"{"}}', "stands twice"),
        ('{"b":{"a":"\\"}","\\u0061":2}}', "stands twice"), ('{"a":"\xff"}', "UTF-8"),
        ("[]", "claims: expected"), ('{"a":' + "[" * 40 + "]" * 40 + "}", "nested deeper than 32 levels"),
        ('{"a":' + "[" * 60_000, "nested too deeply"), ('{"a":"\ud800"}', "UTF-8|not valid JSON"),
    ],
)  # fmt: skip
def test_odd_values_are_refused_in_one_line(claims: str, said: str) -> None:
    data = text(claims.replace("\xff", "@").replace("\ud800", "\\ud800"))
    with pytest.raises(Invalid, match=said) as told:
        loads(data.replace(b"@", b"\xff"))
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) <= 500
