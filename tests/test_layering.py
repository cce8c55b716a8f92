"""The order of imports inside antiphon: each module imports only from what comes before it.

Read off the source with `ast`, so imports inside functions and relative imports count as well.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

# A layer is a file or a folder of src/antiphon; it may import from those before it.
LAYERS = (
    "errors",
    "units",
    "options",
    "core",
    "registry",
    "isolate",
    "topologies",
    "cost",
    "planners",
    "lower",
    "formats",
    "select",
    "runtimes",
    "reproduce",
    "show",
    "torch",
    "api",
    "cli",
    "__main__",
)

# A module of core is a file or a package; it may import from those before it.
CORE = (
    "columns",
    "permute",
    "choose",
    "topology",
    "reshape",
    "symmetry",
    "routes",
    "collective",
    "request",
    "schedule",
    "example",
    "dependencies",
    "joints",
    "loads",
    "verify",
    "datatypes",
    "interpret",
    "transform",
    "messages",
    "bounds",
    "ksync",
    "program",
    "plan",
    "files",
    "serialize",
)

HEAVY = ("igraph", "ml_dtypes", "scipy")

# A module by its name below antiphon: antiphon.core.plan is ("core", "plan"), antiphon itself ().
Name = tuple[str, ...]


class Import(NamedTuple):
    line: int
    target: Name | None  # None: a relative import that leaves the package
    attribute: str | None  # what is taken from the target, where that is not a module


def dotted(name: Name) -> str:
    return ".".join(("antiphon", *name))


def is_module(package: Path, name: Name) -> bool:
    path = package.joinpath(*name)
    return path.is_dir() or (bool(name) and path.with_name(path.name + ".py").is_file())


def imports(tree: ast.AST, package: Path, folder: Name) -> Iterator[Import]:
    """Every import of something of antiphon in a file of the package `folder`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, *rest = alias.name.split(".")
                if top == "antiphon":
                    yield Import(node.lineno, tuple(rest), None)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            base: Name
            if node.level:
                climb = node.level - 1
                if climb > len(folder):
                    yield Import(node.lineno, None, None)
                    continue
                base = (*folder[: len(folder) - climb], *parts)
            elif parts[0] == "antiphon":
                base = tuple(parts[1:])
            else:
                continue
            for alias in node.names:
                inner = (*base, alias.name)
                if is_module(package, inner):
                    yield Import(node.lineno, inner, None)
                else:
                    yield Import(node.lineno, base, alias.name)


def place_problem(name: Name) -> str | None:
    """What is wrong with where a module is, if anything: it must have a place in the order."""
    if name and name[0] not in LAYERS:
        return f"{dotted(name[:1])} has no place in LAYERS of {Path(__file__).name}"
    if name[:1] == ("core",) and len(name) > 1 and name[1] not in CORE:
        return f"{dotted(name[:2])} has no place in CORE of {Path(__file__).name}"
    return None


def import_problem(importer: Name, importer_is_init: bool, found: Import) -> str | None:
    """What is wrong with an import, if anything. The importer has a place in the order."""
    target = found.target
    if target is None:
        return "the relative import leaves the package"
    if importer == ():
        return None
    if target == ():
        return None if found.attribute == "__version__" else "only __version__ may be taken from antiphon itself"
    wrong = place_problem(target) or private_problem(importer, target)
    if wrong is None and target[0] != importer[0]:
        in_order = LAYERS.index(target[0]) < LAYERS.index(importer[0])
        return None if in_order else f"{target[0]} comes after {importer[0]}"
    if wrong is None and not (importer_is_init and target[: len(importer)] == importer):
        return sideways_problem(importer, target)
    return wrong  # the front of a folder may show all that is in the folder


def private_problem(importer: Name, target: Name) -> str | None:
    """A file whose name begins with _ is there for those of its own folder."""
    for depth, part in enumerate(target):
        if part.startswith("_") and importer[:depth] != target[:depth]:
            return f"{dotted(target[: depth + 1])} is private to its folder"
    return None


def sideways_problem(importer: Name, target: Name) -> str | None:
    """What is wrong with an import from the importer's own layer, if anything."""
    layer = importer[0]
    if layer == "core":
        if len(target) == 1:
            return "a module of core may not import from the front of core"
        in_order = CORE.index(target[1]) <= CORE.index(importer[1])
        return None if in_order else f"core.{target[1]} comes after core.{importer[1]}"
    own_front = importer[: len(target)] == target
    return f"a file of {dotted(target)} may not import from its own front" if own_front else None


def violations(package: Path) -> list[str]:
    """Every breach of the order in the files of the package, as `file:line: what is wrong`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        folder: Name = where.parent.parts
        is_init = where.name == "__init__.py"
        name = folder if is_init else (*folder, where.stem)
        wrong = place_problem(name)
        if wrong:
            found.append(f"{where}:1: {wrong}")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for item in imports(tree, package, folder):
            wrong = import_problem(name, is_init, item)
            if wrong:
                target = "?" if item.target is None else dotted(item.target)
                found.append(f"{where}:{item.line}: {dotted(name)} imports {target}: {wrong}")
    return list(dict.fromkeys(found))  # once for a line that takes several names from one module


def in_file(name: str) -> str:
    return name


def in_room(name: str) -> str:
    """The room that a file is in: a folder within a layer; a file beside the rooms stands for itself."""
    return ".".join(name.split(".")[:2])


def circles(package: Path, place: Callable[[str], str] = in_file) -> list[list[str]]:
    """Places that import each other, whatever the way round, imports inside functions and for types included."""
    files = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for name, path in files.items():
        folder = path.relative_to(package).parent.parts
        found = imports(ast.parse(path.read_text(encoding="utf-8")), package, folder)
        targets = {".".join(item.target) for item in found if item.target}
        inside = {t if t in files else f"{t}.__init__" for t in targets} & files.keys()
        needs.setdefault(place(name), set()).update({place(target) for target in inside} - {place(name)})
    left = dict(needs)
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    reached = {name: _reached(name, left) for name in left}
    alike = {tuple(sorted(other for other in reached[name] if name in reached.get(other, ()))) for name in left}
    return sorted(list(names) for names in alike if names)


def _reached(name: str, needs: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    row = [name]
    while row:
        new = needs.get(row.pop(), set()) - found
        found |= new
        row += new
    return found


def test_imports_follow_the_order() -> None:
    assert (SRC / "antiphon" / "__init__.py").is_file()
    found = violations(SRC / "antiphon")
    assert not found, "\n".join(found)


def test_no_files_import_each_other() -> None:
    assert circles(SRC / "antiphon") == []


def test_no_rooms_import_each_other() -> None:
    assert circles(SRC / "antiphon", in_room) == []


# ---- what is imported at start-up ----


def heavy_after(code: str) -> list[str]:
    """Which heavy libraries a fresh interpreter holds after running the code."""
    program = f"import sys\n{code}\nprint('\\nloaded:', *sorted({set(HEAVY)!r} & set(sys.modules)), file=sys.stderr)\n"
    path = os.pathsep.join(filter(None, (str(SRC), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("loaded:"), done.stderr
    return last.split()[1:]


def test_importing_antiphon_is_light() -> None:
    assert heavy_after("import antiphon") == []


def test_the_help_of_the_command_is_light() -> None:
    code = (
        "from antiphon.cli import main\n"
        "sys.argv = ['antiphon', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code"
    )
    assert heavy_after(code) == []


def test_heavy_libraries_are_noticed() -> None:
    assert heavy_after("import scipy") == ["scipy"]


# ---- the check checked, on small trees ----


def problems(tmp_path: Path, files: dict[str, str]) -> list[str]:
    package = tmp_path / "antiphon"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return violations(package)


GOOD = {
    "__init__.py": '__version__ = "0"\nfrom antiphon.cli import main\n',
    "errors.py": "import os\nfrom os import path\n",
    "units.py": "from antiphon.errors import Wrong\n",
    "core/__init__.py": "from antiphon.core.plan import Plan\n",
    "core/topology.py": "from antiphon import units\nfrom antiphon.units import parse\n",
    "core/routes.py": "from .topology import Link\nfrom .. import errors\n",
    "core/bounds/__init__.py": "from antiphon.core.bounds.cut import cut\n",
    "core/bounds/cut.py": "from antiphon.core.bounds import flow\n",
    "core/bounds/flow.py": "def f():\n    from .dual import d\n    from ...core import routes\n",
    "core/bounds/dual.py": "d = 1\n",
    "core/plan.py": "from antiphon.core.bounds import lower_bound\nfrom antiphon import __version__\n",
    "registry.py": "import antiphon.core.plan\n",
    "planners/__init__.py": "from . import ring\n",
    "planners/_trees.py": "from antiphon.core import topology\n",
    "planners/tree.py": "from antiphon.planners._trees import grow\n",
    "planners/ring.py": "from ._trees import grow\nfrom . import _trees, tree\n",
    "planners/packed/_kernel.py": "from antiphon.planners._trees import grow\n",
    "planners/packed/trees.py": "from antiphon.planners.packed._kernel import K\n",
    "cli.py": "from antiphon.planners.ring import Ring\nfrom antiphon import __version__, registry\n",
    "__main__.py": "from antiphon.cli import main\n",
}


def test_a_good_tree_passes(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        pytest.param("errors.py", "from antiphon import units", "units comes after errors", id="errors-units"),
        pytest.param("core/topology.py", "import antiphon.registry", "registry comes after core", id="later-layer"),
        pytest.param("core/topology.py", "import antiphon.cli as c", "cli comes after core", id="later-layer-as"),
        pytest.param("registry.py", "from antiphon import planners", "planners comes after", id="from-package"),
        pytest.param("core/routes.py", "from antiphon.core.plan import P", "core.plan comes after", id="later-core"),
        pytest.param("core/routes.py", "from antiphon.core import plan", "core.plan comes after", id="later-core-2"),
        pytest.param("core/routes.py", "from antiphon.core import Plan", "the front of core", id="front-of-core"),
        pytest.param("core/bounds/cut.py", "from ..plan import P", "core.plan comes after", id="core-package"),
        pytest.param("planners/tree.py", "from antiphon.planners.packed._kernel import K", "is private", id="private"),
        pytest.param("planners/tree.py", "import antiphon.planners.packed._kernel", "is private", id="private-import"),
        pytest.param("cli.py", "from antiphon.planners._trees import grow", "is private", id="private-of-a-layer"),
        pytest.param("cli.py", "from antiphon.planners import _trees", "is private", id="private-from-its-front"),
        pytest.param("planners/tree.py", "from antiphon.planners import Ring", "its own front", id="own-front"),
        pytest.param("units.py", "def f():\n    from antiphon.core import plan", "core comes after", id="in-function"),
        pytest.param(
            "units.py", "class A:\n    def f(self):\n        import antiphon.cli", "cli comes", id="in-method"
        ),
        pytest.param("units.py", "try:\n    import antiphon.cli\nexcept ImportError:\n    pass", "cli", id="in-try"),
        pytest.param("units.py", "from .core import plan", "core comes after units", id="relative"),
        pytest.param("core/routes.py", "from .plan import P", "core.plan comes after", id="relative-core"),
        pytest.param("core/routes.py", "from . import plan", "core.plan comes after", id="relative-dot"),
        pytest.param("core/routes.py", "from ..cli import main", "cli comes after core", id="relative-up"),
        pytest.param("planners/tree.py", "from .packed import _kernel", "is private", id="relative-private"),
        pytest.param("planners/__init__.py", "from ..cli import main", "cli comes after", id="init-later"),
        pytest.param("core/routes.py", "from ....other import x", "leaves the package", id="relative-out"),
        pytest.param("core/routes.py", "from antiphon import Plan", "only __version__", id="from-the-top"),
        pytest.param("core/routes.py", "import antiphon", "only __version__", id="import-the-top"),
        pytest.param("core/newcomer.py", "", "core.newcomer has no place in CORE", id="unknown-core-file"),
        pytest.param("core/fresh/part.py", "", "core.fresh has no place in CORE", id="unknown-core-package"),
        pytest.param("other.py", "", "antiphon.other has no place in LAYERS", id="unknown-layer"),
        pytest.param("cli.py", "import antiphon.missing", "antiphon.missing has no place", id="unknown-target"),
    ],
)
def test_a_violation_is_caught(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    found = problems(tmp_path, {**GOOD, name: text + "\n"})
    assert len(found) == 1, found
    assert found[0].startswith(f"{name}:")
    assert complaint in found[0]


def test_a_circle_is_caught(tmp_path: Path) -> None:
    files = {
        "planners/_a.py": "def f():\n    from antiphon.planners._b import B\n",
        "planners/_b.py": "from antiphon.planners import _c\n",
        "planners/_c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ._a import A\n",
        "planners/_d.py": "from antiphon.planners._a import A\n",
    }
    assert problems(tmp_path, {**GOOD, **files}) == []
    assert circles(tmp_path / "antiphon") == [["planners._a", "planners._b", "planners._c"]]


def test_a_circle_of_rooms_is_caught(tmp_path: Path) -> None:
    """No file imports itself by way of others here, but neither room can be read before the other."""
    files = {
        "cost/flows/parts.py": "from antiphon.cost.loggp.work import W\n",
        "cost/flows/run.py": "",
        "cost/loggp/work.py": "",
        "cost/loggp/run.py": "from antiphon.cost.flows.run import run\n",
        "cost/trace.py": "from antiphon.cost.flows.run import run\n",
        "planners/__init__.py": "",
    }
    package = tmp_path / "antiphon"
    assert not [line for line in problems(tmp_path, files) if "comes after" not in line]
    assert circles(package) == []
    assert circles(package, in_room) == [["cost.flows", "cost.loggp"]]


def test_every_violation_of_a_file_is_listed(tmp_path: Path) -> None:
    text = "from antiphon import cli, units\n\n\ndef f():\n    from .core import plan\n"
    found = problems(tmp_path, {**GOOD, "errors.py": text})
    assert [line.split(": ")[0] for line in found] == ["errors.py:1", "errors.py:1", "errors.py:5"]
