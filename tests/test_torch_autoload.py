"""PyTorch finds the backend by itself: its entry point, as pyproject.toml declares it."""

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install 'antiphon[torch]'")

GROUP = """
import sys
import torch
import torch.distributed as dist

heavy = [name for name in sys.modules if name.startswith("antiphon.") and name.count(".") > 1 and "torch_" in name]
assert heavy == ["antiphon.runtimes.serve.torch_autoload"], heavy
assert "antiphon.core.schedule" not in sys.modules
assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("antiphon", store=store, rank=0, world_size=1)
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor.tolist() == [1, 1, 1, 1]
import antiphon.torch
assert isinstance(dist.distributed_c10d._get_default_group(), antiphon.torch.AntiphonGroup)
dist.destroy_process_group()
print("right")
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package has the entry points of ours."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "site" / "declared-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in groups["torch.backends"].items()]
    (folder / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines, ""]))
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def program(text: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_group_without_importing_us(installed: dict[str, str]) -> None:
    done = program(GROUP, installed)
    assert done.stdout == "right\n", done.stderr


def test_the_import_of_pytorch_never_fails_by_us() -> None:
    """Neither without torch.distributed, nor where it is made otherwise."""
    text = (
        "import sys, types\n"
        "from antiphon.runtimes.serve.torch_autoload import register\n"
        "register()\n"
        "sys.modules['torch.distributed'] = types.ModuleType('torch.distributed')\n"
        "register()\n"
        "assert 'numpy' not in sys.modules\n"
    )
    done = program(text, dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
