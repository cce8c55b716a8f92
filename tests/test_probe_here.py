"""This machine, read from folders that look like those of Linux and from programs that print what the vendors' do."""

import os
from collections.abc import Mapping
from pathlib import Path

import probe_cases
import pytest
from probe_text import fabric, links_of, nvlink_status, told, topo

from antiphon.core.reshape import keep
from antiphon.core.symmetry import canonical
from antiphon.errors import Invalid, Missing
from antiphon.formats.probe.here import look_at_machine, visible_gpus
from antiphon.formats.probe.probed import Probed
from antiphon.topologies import topology

EMPTY: Mapping[str, str] = {}


class Linux:
    """A folder as /sys is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bus/pci/devices", "devices/system/cpu", "devices/system/node", "class/net", "class/infiniband"):
            (root / folder).mkdir(parents=True)

    def put(self, path: str, **texts: object) -> Path:
        here = self.root / path
        here.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (here / name).write_text(f"{text}\n")
        return here

    def pci(
        self, chain: str, gts: str = "16.0 GT/s PCIe", width: int = 16, now: int | None = None, **texts: object
    ) -> str:
        """A device by the bridges above it, as "40:01/41:00": all have the same link."""
        path = "devices/pci0000:" + chain.split(":", maxsplit=1)[0]
        for part in chain.split("/"):
            path += f"/0000:{part}.0"
            here = self.put(path, max_link_speed=gts, max_link_width=width, current_link_width=now or width)
            place = self.root / "bus/pci/devices" / here.name
            if not place.exists():
                place.symlink_to(os.path.relpath(here, place.parent))
            self.put(path, **{"class": "0x060400", "vendor": "0x1000", "numa_node": texts.get("numa_node", -1)})
        self.put(path, **texts)
        return path

    def gpu(self, chain: str, numa: int = 0, amd: bool = False, **more: object) -> str:
        kind, vendor = ("0x120000", "0x1002") if amd else ("0x030200", "0x10de")
        return self.pci(chain, **{"class": kind, "vendor": vendor, "numa_node": numa}, **more)  # type: ignore[arg-type]

    def card(self, chain: str, name: str, numa: int = 0, rate: str = "200 Gb/sec (4X HDR)") -> None:
        path = self.pci(chain, **{"class": "0x020700", "vendor": "0x15b3", "numa_node": numa})  # type: ignore[arg-type]
        self.put(f"{path}/infiniband/{name}/ports/1", rate=rate, state="4: ACTIVE")
        here = self.root / "class/infiniband" / name
        real = self.root / path / "infiniband" / name
        here.symlink_to(os.path.relpath(real, here.parent))
        (real / "device").symlink_to("../..")

    def cpu(self, number: int, package: int, siblings: str, last: str, level: int = 3) -> None:
        here = f"devices/system/cpu/cpu{number}"
        self.put(f"{here}/topology", physical_package_id=package, thread_siblings_list=siblings)
        self.put(f"{here}/cache/index0", level=1, type="Data", shared_cpu_list=siblings)
        self.put(f"{here}/cache/index1", level=1, type="Instruction", shared_cpu_list=siblings)
        self.put(f"{here}/cache/index2", level=level, type="Unified", shared_cpu_list=last)


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Linux:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return Linux(tmp_path / "sys")


def program(linux: Linux, name: str, answers: Mapping[str, str], code: int = 0) -> None:
    """A program that prints a text for each first words of its arguments."""
    folder = linux.root.parent / "bin"
    cases = ""
    for number, (words, text) in enumerate(answers.items()):
        (folder / f"{name}.{number}").write_text(text)
        cases += (
            f'"{words}"*) while IFS= read -r line; do printf "%s\\n" "$line"; done < {folder / f"{name}.{number}"} ;;\n'
        )
    (folder / name).write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) echo cannot >&2; exit 9 ;;\nesac\nexit {code}\n')
    (folder / name).chmod(0o755)


def seen(linux: Linux, environment: Mapping[str, str] = EMPTY, source: str = "", **options: object) -> Probed:
    return look_at_machine(source, str(linux.root), environment, options)


def alike(found: Probed, spec: str) -> bool:
    return canonical(found.machine)[1] == canonical(topology(spec))[1]


def has(found: Probed, *words: str) -> None:
    for word in words:
        assert any(word in note for note in found.notes), found.notes


def test_processors_alone(linux: Linux) -> None:
    """Two packages of four cores with two threads each; two caches in each."""
    for number in range(16):
        core, package = number % 8, number % 8 // 4
        low = core // 2 * 2
        linux.cpu(number, package, f"{core},{core + 8}", f"{low}-{low + 1},{low + 8}-{low + 9}")
    for node in range(2):
        linux.put(
            f"devices/system/node/node{node}", cpulist=f"{4 * node}-{4 * node + 3},{4 * node + 8}-{4 * node + 11}"
        )
    found = seen(linux)
    assert (found.machine.ranks, found.machine.switches) == (8, 6)
    assert links_of(found.machine) == told(
        found.machine,
        "core 10: 0,1-socket0/cache0/switch 2,3-socket0/cache1/switch 4,5-socket1/cache0/switch "
        "6,7-socket1/cache1/switch; cache 20: "
        "socket0/cache0/switch-socket0/switch socket0/cache1/switch-socket0/switch "
        "socket1/cache0/switch-socket1/switch "
        "socket1/cache1/switch-socket1/switch; socket 16: socket0/switch-socket1/switch",
    )
    has(found, "PCIe cannot be seen", "nvidia-smi is not on PATH", "no AMD GPU", "no network card", "a rank is a core")


def test_gpus_without_their_program(linux: Linux) -> None:
    """Two switches with two GPUs and a card each; NVLinks cannot be seen, and that is told."""
    for side in range(2):
        for i in range(2):
            linux.gpu(f"{side}0:01/{side}1:00/{side}2:0{i}/{side}{3 + i}:00", side)
        linux.card(f"{side}0:01/{side}1:00/{side}2:02/{side}8:00", f"mlx5_{side}", side)
    found = seen(linux)
    assert links_of(found.machine) == told(
        found.machine, "pcie 31.51: 0,1-pcie0 2,3-pcie1 pcie0-bridge0 pcie1-bridge1; socket 16: bridge0-bridge1"
    )
    has(found, "NVLinks cannot be seen: nvidia-smi is not on PATH")
    assert {card.name: (card.nodes, int(card.bandwidth or 0)) for card in found.machine.cards} == {
        "mlx5_0": ((4,), 25 * 10**9),
        "mlx5_1": ((5,), 25 * 10**9),
    }


def test_a_card_that_is_also_an_interface_is_one(linux: Linux) -> None:
    linux.gpu("00:01/01:00")
    linux.card("00:02/02:00", "mlx5_0")
    linux.pci("00:03/03:00", **{"class": "0x020000", "vendor": "0x8086", "numa_node": 0})  # type: ignore[arg-type]
    for name, bus, speed in (("ib0", "02", 200000), ("eth0", "03", 100000), ("eth1", "03", 100000)):
        here = linux.put(f"class/net/{name}", speed=speed)
        place = linux.root / "devices/pci0000:00" / f"0000:00:{bus}.0" / f"0000:{bus}:00.0"
        (here / "device").symlink_to(os.path.relpath(place, here))
    linux.put("class/net/lo")
    assert [card.name for card in seen(linux).machine.cards] == ["mlx5_0", "eth0"]


def test_a_slot_is_as_wide_as_it_is_wired_and_as_fast_as_it_can_be(linux: Linux) -> None:
    linux.gpu("00:01/01:00", gts="8.0 GT/s PCIe", width=16, now=8)
    linux.gpu("00:02/02:00", gts="32.0 GT/s PCIe")
    assert links_of(seen(linux).machine) == told(seen(linux).machine, "pcie 7.877: 0-bridge0; pcie 63.02: 1-bridge0")


_QUERY = "index, name, uuid, pci.bus_id, pcie.link.gen.max, pcie.link.width.max\n"


def _dgx1(linux: Linux) -> None:
    buses = ("06", "07", "0a", "0b", "85", "86", "89", "8a")
    for i, bus in enumerate(buses):
        linux.gpu(f"{'80' if i > 3 else '00'}:0{i // 2}/{bus}:00", i // 4, gts="8.0 GT/s PCIe")
    rows = "".join(
        f"{i}, Tesla V100-SXM2-16GB, GPU-{i}, 00000000:{bus.upper()}:00.0, 3, 16\n" for i, bus in enumerate(buses)
    )
    program(
        linux,
        "nvidia-smi",
        {
            "topo -m": probe_cases.DGX1V,
            "nvlink -s": nvlink_status([("Tesla V100-SXM2-16GB", ["25.781"] * 6)] * 8),
            "--query-gpu": _QUERY + rows,
        },
    )


def test_a_dgx1_by_its_program_and_linux(linux: Linux) -> None:
    _dgx1(linux)
    found = seen(linux)
    assert alike(found, "dgx1v")
    assert found.machine.name == "8 x Tesla V100-SXM2-16GB"
    assert found.names[7] == "GPU 7"


@pytest.mark.parametrize(("told_", "ranks"), [("1,4,5,6", [1, 4, 5, 6]), ("6,1,4", [6, 1, 4]), ("2, 3,-1,5", [2, 3])])
def test_a_part_of_it_is_what_the_variable_shows(linux: Linux, told_: str, ranks: list[int]) -> None:
    _dgx1(linux)
    found = seen(linux, {"CUDA_VISIBLE_DEVICES": told_})
    assert found.names == tuple(f"GPU {rank}" for rank in ranks)
    has(found, f"only CUDA_VISIBLE_DEVICES={told_}: rank 0 is GPU {ranks[0]}")
    whole, part = topology("dgx1v"), found.machine
    assert canonical(part)[1] == canonical(keep(whole, ranks).topology)[1]
    assert part.ranks == len(ranks)
    for a, mine in enumerate(ranks):
        for b, other in enumerate(ranks):
            wide = [
                whole.bandwidth(i)
                for i in range(whole.links)
                if (whole.link_src[i], whole.link_dst[i]) == (mine, other)
            ]
            here = [part.bandwidth(i) for i in range(part.links) if (part.link_src[i], part.link_dst[i]) == (a, b)]
            assert here == wide


def test_variables_that_show_all_none_or_names(linux: Linux) -> None:
    _dgx1(linux)
    assert alike(seen(linux, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}), "dgx1v")
    has(seen(linux, {"CUDA_VISIBLE_DEVICES": "GPU-12ab"}), "names no GPU by its number; all are shown")
    with pytest.raises(Invalid, match="CUDA_VISIBLE_DEVICES is '': it shows no GPU"):
        seen(linux, {"CUDA_VISIBLE_DEVICES": ""})
    assert visible_gpus("0,9,1", 8) == [0]


def test_a_program_that_fails_is_told(linux: Linux) -> None:
    linux.gpu("00:01/01:00")
    linux.gpu("00:02/02:00")
    program(linux, "nvidia-smi", {})
    has(seen(linux), "NVLinks cannot be seen: nvidia-smi topo -m: cannot")


def test_gpus_of_a_container_that_linux_shows_otherwise(linux: Linux) -> None:
    """The program tells of two GPUs, Linux of one other: the program's matrix stands."""
    linux.gpu("00:01/01:00")
    program(
        linux,
        "nvidia-smi",
        {
            "topo -m": topo(2, lambda a, b: "NV4"),
            "nvlink -s": nvlink_status([("NVIDIA RTX A6000", ["14.062"] * 4)] * 2),
        },
    )
    found = seen(linux)
    assert links_of(found.machine) == told(found.machine, "nvlink 56.25: 0-1")


def _mi300x(linux: Linux) -> None:
    nodes = "class/kfd/kfd/topology/nodes"
    linux.put(f"{nodes}/0", gpu_id=0, properties="cpu_cores_count 96\nsimd_count 0")
    for i in range(8):
        bus = 0x10 + 16 * i
        linux.gpu(f"{bus - 2:02x}:01/{bus:02x}:00", i // 4, amd=True, gts="32.0 GT/s PCIe")
        linux.put(
            f"{nodes}/{i + 1}",
            gpu_id=1000 + i,
            properties=f"location_id {bus << 8}\ndomain 0\ngfx_target_version 90402",
        )
        for j in range(8):
            kind, weight = (2, 20) if j == i else (11, 15)
            linux.put(
                f"{nodes}/{i + 1}/io_links/{j}",
                properties=(
                    f"type {kind}\nnode_from {i + 1}\nnode_to {j + 1 if j != i else 0}\nweight {weight}\n"
                    f"max_bandwidth 64000"
                ),
            )


def test_mi300x_by_the_drivers_topology(linux: Linux) -> None:
    _mi300x(linux)
    found = seen(linux)
    assert alike(found, "mi300x")
    has(found, "no NVIDIA GPU on PCIe")
    assert seen(linux, {"ROCR_VISIBLE_DEVICES": "2,5"}).names == ("GPU 2", "GPU 5")


def test_an_unknown_gpu_of_amd_is_told(linux: Linux) -> None:
    _mi300x(linux)
    for properties in linux.root.rglob("nodes/*/properties"):
        properties.write_text(properties.read_text().replace("gfx_target_version 90402", "gfx_target_version 130000"))
    has(seen(linux), "the driver names no AMD GPU of the catalogue: taken to be MI200, with PCIe 4 and, where it")


def test_amd_without_its_driver(linux: Linux) -> None:
    linux.gpu("00:01/01:00", amd=True)
    linux.gpu("00:02/02:00", amd=True)
    has(seen(linux), "xGMI cannot be seen: the driver shows no topology")


def test_one_tool_alone(linux: Linux) -> None:
    program(linux, "rocm-smi", {"--showtopo": probe_cases.HIVE})
    assert alike(seen(linux, source="rocm-smi"), "mi300x")
    with_pcie = seen(linux, source="rocm-smi", pcie=True)
    assert len(with_pcie.machine.link_src) > len(seen(linux, source="rocm-smi").machine.link_src)
    with pytest.raises(Missing, match="asks lstopo, which is not on PATH"):
        seen(linux, source="hwloc")
    with pytest.raises(Invalid, match="nccl-xml reads a file; name it"):
        seen(linux, source="nccl-xml")


def test_the_hosts_of_a_job(linux: Linux) -> None:
    program(
        linux,
        "scontrol",
        {"show topology": "SwitchName=s0 Nodes=n[1-4]\nSwitchName=s1 Nodes=n[5-8]\nSwitchName=t Switches=s[0-1]\n"},
    )
    found = seen(linux, {"SLURM_JOB_NODELIST": "n[3-4,7]"}, "slurm")
    assert found.names == ("n3", "n4", "n7")
    assert found.machine.places[:3] == ("n3", "n4", "n7")
    assert seen(linux, {}, "slurm").machine.ranks == 8
    assert min(kind.bandwidth for kind in seen(linux, {}, "slurm", nic="400Gbit/s").machine.types) == 50 * 10**9
    with pytest.raises(Invalid, match="unknown option of reader slurm 'pcie'"):
        seen(linux, {}, "slurm", pcie=True)
    with pytest.raises(Invalid, match="SLURM_JOB_NODELIST: 'n9' does not exist"):
        seen(linux, {"SLURM_JOB_NODELIST": "n9"}, "slurm")
    program(linux, "ibnetdiscover", {"": fabric({"sw": "switch"}, ["sw 1 - a/m 1 4xHDR", "sw 2 - b/m 1 4xHDR"])})
    assert seen(linux, {}, "ibnetdiscover").names == ("a", "b")


def test_no_such_place(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="nowhere: is not a directory"):
        look_at_machine("", str(tmp_path / "nowhere"), {})
