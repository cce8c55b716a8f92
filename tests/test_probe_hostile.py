"""What readers of machines are given by strangers: refused in one line, soon; nothing beyond the file is touched."""

import gzip
import json
import os
import time
from pathlib import Path

import probe_cases
import pytest
from tables import listed

from antiphon.errors import Invalid
from antiphon.formats.probe.slurm import expand_hosts
from antiphon.formats.probe.table import SOURCES, read, recognise_source
from antiphon.formats.xml import read_xml

SMI, ROCM, NCCL, HWLOC, IB, SLURM = ("nvidia-smi", "rocm-smi", "nccl-xml", "hwloc", "ibnetdiscover", "slurm")
_MATRIX = probe_cases.text_of("hwloc", "S822LC")
REFUSED = [
    *listed("refused-probes"),
    (SMI, "GPU0 " + " ".join(f"NIC{i}" for i in range(500)) + "\nGPU0 X\n", "a matrix of 501 devices; at most 128"),
    (SMI, "".join(f"GPU {i}: a\n" for i in range(2000)), "shows 2000 GPUs; at most 1024"),
    (SMI, "x" * 300_000, "line 1: has more than 262144 bytes"),
    (ROCM, "=== Weight between two GPUs ===\n" + " ".join(f"GPU{i}" for i in range(200)), "more than 128 GPUs"),
    (ROCM, "{" + '"a":"b",' * 200_000 + '"c":1}', "is larger than 1048576 bytes"),
    (ROCM, '[{"gpu": -1, "links": []}]', "gpu"),
    (ROCM, '[{"gpu": 0, "links": [{"gpu": 99999}]}]', "gpu"),
    (ROCM, '[{"gpu": 0, "links": {}}]', "links"),
    (ROCM, '{"gpu_data": [{"gpu": 0}], "other": [{"gpu": 0}', "JSON"),
    (ROCM, json.dumps([{"gpu": i} for i in range(200)]), "more than 128 GPUs"),
    (NCCL, "<system><cpu>" + "<pci/>" * 9000 + "</cpu></system>", "more than 8192 devices"),
    (NCCL, "<system><gpu>" + "<nvlink/>" * 9000 + "</gpu></system>", "more than 8192 links between GPUs"),
    (HWLOC, "<topology>" + '<object type="Core"/>' * 9000 + "</topology>", "more than 8192 cores"),
    (HWLOC, _MATRIX.replace("1000000 40000", "1000000"), "values for 6 objects; expected 36"),
    (HWLOC, _MATRIX.replace("1000000 40000", "many 40000"), "'many' is no bandwidth in MB/s"),
    (SLURM, "a\\\n" * 200_000, "goes on for more than 262144 characters"),
]  # fmt: skip


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("source", "text", "said"), REFUSED)
def test_what_is_wrong_is_refused_in_one_line(source: str, text: str, said: str, tmp_path: Path) -> None:
    began = time.process_time()
    with pytest.raises(Invalid, match=said) as error:
        read([written(tmp_path, text)], source)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) <= 500
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["nan", "UTF-88", "alltoall", "rot13", "utf-7", "idna"])
def test_encodings_that_nobody_knows(name: str) -> None:
    with pytest.raises(Invalid, match="encoding"):
        read_xml(f'<?xml version="1.0" encoding="{name}"?><a/>'.encode(), _Nothing())


ENTITIES = '<!DOCTYPE topology [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><topology>&b;</topology>'


@pytest.mark.parametrize("source", [NCCL, HWLOC])
def test_document_types_declare_nothing(source: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="line 1: has a document type"):
        read([written(tmp_path, ENTITIES)], source)
    with pytest.raises(Invalid, match="line 1: has a document type"):
        read([written(tmp_path, "<!DOCTYPE topology [<!ELEMENT a ANY>]><topology/>")], source)


def test_a_document_type_that_names_a_file_opens_none(tmp_path: Path) -> None:
    """hwloc writes one in every file; it is a pipe here, which nobody writes into: to open it would wait."""
    os.mkfifo(tmp_path / "hwloc2.dtd")
    text = probe_cases.text_of("hwloc", "two packages").replace("hwloc2.dtd", str(tmp_path / "hwloc2.dtd"))
    assert read([written(tmp_path, text)], HWLOC).machine.ranks == 8
    with pytest.raises(Invalid, match="has a document type"):  # other readers take none
        read_xml(text.encode(), _Nothing())


class _Nothing:
    def begin(self, name: str, attributes: object, line: int) -> None: ...

    def end(self, name: str) -> None: ...


def test_what_nobody_knows_is_told_with_who_there_is(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="unrecognised file; pass --from ") as told:
        recognise_source(written(tmp_path, "hello\n"))
    assert all(name in str(told.value) for name in SOURCES)
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read([str(tmp_path / "nowhere")])


def test_compressed_and_strange_bytes(tmp_path: Path) -> None:
    path = tmp_path / "topo.gz"
    path.write_bytes(gzip.compress(probe_cases.DGX1V.encode()))
    assert read([str(path)]).machine.ranks == 8
    path.write_bytes(b"\xef\xbb\xbf" + probe_cases.DGX1V.replace("\n", "\r\n").encode() + b"\xff\xfe\n")
    assert read([str(path)]).machine.ranks == 8
    path.write_bytes(probe_cases.DGX1V.replace("GPU0    GPU1", "\x1b[4mGPU0    GPU1", 1).encode())
    assert read([str(path)]).machine.ranks == 8


def test_names_from_files_stay_printable(tmp_path: Path) -> None:
    text = 'Switch 1 "S-1" # "a\x07\x1b[31mb"\n[1] "H-2"[1] # "n\x1bode c" lid 1 4xEDR\n'
    found = read([written(tmp_path, text)], IB)
    assert all(place.isprintable() for place in found.machine.places)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tux[0-3,12],login", ["tux0", "tux1", "tux2", "tux3", "tux12", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1-2]-ib", ["a1-ib", "a2-ib"]),
        ("", []), ("(null)", []), ("one", ["one"]), ("a,b", ["a", "b"]),
    ],
)  # fmt: skip
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names
