"""What readers of machines are given by strangers: refused in one line, soon; nothing beyond the file is touched."""

import gzip
import os
import time
from pathlib import Path

import probe_cases
import pytest

from antiphon.errors import Invalid
from antiphon.formats.probe.slurm import expand_hosts
from antiphon.formats.probe.table import SOURCES, read, recognise_source
from antiphon.formats.xml import read_xml

SMI, ROCM, NCCL, HWLOC, IB, SLURM, NET = (
    "nvidia-smi", "rocm-smi", "nccl-xml", "hwloc", "ibnetdiscover", "slurm", "netfiles"
)  # fmt: skip
CHAIN = "<pci>" * 40
_MATRIX = probe_cases.text_of("hwloc", "S822LC")
_AT_ONE = "bandwidth: [ 1 ]\nlatency: [ 1 ]\n"
RING = '<graphs><graph pattern="4" speedintra="{}"><channel><gpu dev="0"/></channel></graph></graphs>'
REFUSED = [
    (SMI, "", "shows no GPU"),
    (SMI, "GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4\n", "line 3: row GPU1 has 1 cells for 2 columns"),
    (SMI, "GPU0 " + " ".join(f"NIC{i}" for i in range(500)) + "\nGPU0 X\n", "a matrix of 501 devices; at most 128"),
    (SMI, "".join(f"GPU {i}: a\n" for i in range(2000)), "shows 2000 GPUs; at most 1024"),
    (SMI, "x" * 300_000, "line 1: has more than 262144 bytes"),
    (ROCM, "hello\n", "shows no GPU"),
    (ROCM, "{]", "not valid JSON"),
    (ROCM, "=== Weight between two GPUs ===\n" + " ".join(f"GPU{i}" for i in range(200)), "more than 128 GPUs"),
    (ROCM, "{" + '"a":"b",' * 200_000 + '"c":1}', "is larger than 1048576 bytes"),
    (NCCL, "<topo/>", "line 1: begins with <topo>; expected <system>"),
    (NCCL, "<system></system>", "shows no GPU"),
    (NCCL, f"<system><cpu>{CHAIN}</cpu></system>", "behind more than 32 bridges"),
    (NCCL, "<system><cpu>" + "<pci/>" * 9000 + "</cpu></system>", "more than 8192 devices"),
    (NCCL, '<system><gpu><nvlink count="-1"/></gpu></system>', "count is '-1'"),
    (NCCL, "<system><gpu>" + "<nvlink/>" * 9000 + "</gpu></system>", "more than 8192 links between GPUs"),
    (NCCL, RING.format("x"), "cannot read 'x'"),
    (NCCL, '<graphs><graph><channel><gpu dev="-"/></channel></graph></graphs>', "gpu has dev='-'"),
    (NCCL, "<system>", "not well-formed XML"),
    (HWLOC, "<machine/>", "line 1: begins with <machine>"),
    (HWLOC, "<topology/>", "shows no GPU and no core"),
    (HWLOC, "<topology>" + '<object type="Core"/>' * 9000 + "</topology>", "more than 8192 cores"),
    (HWLOC, _MATRIX.replace("1000000 40000", "1000000"), "values for 6 objects; expected 36"),
    (HWLOC, _MATRIX.replace("1000000 40000", "many 40000"), "'many' is no bandwidth in MB/s"),
    (IB, "hello\n", "shows no host"),
    (IB, '[1] "H-1"[1] # "a" lid 1 4xEDR\n', "line 1: a port before the switch"),
    (IB, 'Ca 1 "H-1" # "a"\n[1] "H-2"[1] # lid 1\n', "are cabled without a switch between"),
    (SLURM, "hello\n", "line 1: 'hello' is no line of topology.conf"),
    (SLURM, "SwitchName=a Nodes=n[1-\n", "has a bracket without its other"),
    (SLURM, "SwitchName=a Nodes=n[1-x]\n", r"\[1-x\] is no range"),
    (SLURM, "SwitchName=a Nodes=n[1-999999999]\n", "is no range from low to high of at most"),
    (SLURM, "SwitchName=a Nodes=n[1-9999][1-9999]\n", "names more than 32768 hosts"),
    (SLURM, "SwitchName=a Nodes=n\nSwitchName=a Nodes=m\n", "line 2: switch 'a' stands there already"),
    (SLURM, "SwitchName=a Switches=b\n", "above 'b', which has no line of its own"),
    (SLURM, "SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n\n", "above each other in a circle"),
    (SLURM, "a\\\n" * 200_000, "goes on for more than 262144 characters"),
    (NET, "", "is empty"),
    (NET, "topology: [ Ring ]\nnpus_count: [ 99999 ]\n" + _AT_ONE, "has 99999 NPUs; at most 16384"),
    (NET, "topology: [ FullyConnected ]\nnpus_count: [ 9999 ]\n" + _AT_ONE, "makes 99970002 links"),
    (NET, "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ tbd ]\nlatency: [ 1 ]\n", "cannot read 'tbd'"),
    (NET, "topology: [ Moebius ]\nnpus_count: [ 8 ]\n" + _AT_ONE, "topology 'Moebius' is not read"),
    (NET, "topology: [ Ring ]\nnpus_count: [ 8, 2 ]\nbandwidth: [ 1, 1, 1 ]\n", "3 values for 2 dimensions"),
    (NET, "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 0 ]\nlatency: [ 1 ]\n", "must be greater than 0"),
    (NET, '{"units-count": [8]}', "tells no topology"),
    (NET, "9 1 1\n8\n0 9 1Gbps 1ns 0\n", "line 3: expected source, destination, rate, delay; nodes are 0 to 8"),
    (NET, "9 1 2\n8\n0 8 1Gbps 1ns 0\n", "has 1 links; the head tells 2"),
    (NET, "9 1 1\n8\n0 8 1Gbps 1ns 0\n1 8 1Gbps 1ns 0\n", "more than 1 links"),
    (NET, "9 1 1\n8\n0 0 1Gbps 1ns 0\n", "leads from node 0 to itself"),
    (NET, "9 1 1\n8\n0 8 fast 1ns 0\n", "rate: cannot read 'fast'"),
    (NET, "9 3 1\n6 7\n0 8 1Gbps 1ns 0\n", "line 3: expected the numbers of 3 switches, found 2"),
    (NET, "9999999 1 1\n8\n", "cannot be read"),
    (NET, "NPUs Count,4\nSrcID,DestID,Latency (ns),Bandwidth (GB/s)\n0,4,1,1\n", "two different NPUs from 0 to 3"),
    (NET, "NPUs Count,4\n", "tells no links"),
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
