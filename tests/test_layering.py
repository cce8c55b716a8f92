"""The order of imports inside antiphon: each module imports only from what comes before it.

Read off the source with `ast`, so imports inside functions count as well. And of those outside, tests above all, none
takes a private name.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import igraph
import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

PAGE = SRC.parent / "docs" / "architecture.md"


def read_order() -> tuple[list[str], list[str]]:
    """The layers (files or folders of src/antiphon) and the modules of core, as the architecture page lists them."""
    text = PAGE.read_text(encoding="utf-8").split("## What may import what")[1].split("\n    ", 1)[1].split("\n\n")[0]
    layers, core = list[str](), list[str]()
    for line in text.splitlines():
        names = re.findall(r"\w+", line)
        is_core = "core:" in line or line.startswith(" " * 10)  # with the lines that continue it
        (core if is_core else layers).extend(names)
        layers += ["core"] if "core:" in line else []
    return layers, core[1:]


LAYERS, CORE = read_order()

HEAVY = ("igraph", "ml_dtypes", "scipy")

# A module by its name below antiphon: antiphon.core.plan is ("core", "plan"), antiphon itself ().
Name = tuple[str, ...]


class Import(NamedTuple):
    line: int
    target: Name | None  # None: a relative import
    attribute: str | None  # what is taken from the target, where that is not a module


def dotted(name: Name) -> str:
    return ".".join(("antiphon", *name))


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements, those inside others too; expressions, most of a tree, hold none."""
    for node in body:
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from statements(getattr(node, field, ()))


def is_module(package: Path, name: Name) -> bool:
    path = package.joinpath(*name)
    return path.is_dir() or (bool(name) and path.with_name(path.name + ".py").is_file())


@cache  # several tests need all files, and to go through a tree takes long
def imports_of(text: str, package: Path) -> list[Import]:
    """All that a file imports of antiphon."""
    imports = []
    for node in statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
            imports += [Import(node.lineno, tuple(rest), None) for top, *rest in modules if top == "antiphon"]
        elif isinstance(node, ast.ImportFrom) and node.level:
            imports.append(Import(node.lineno, None, None))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "antiphon":
            base = tuple(str(node.module).split(".")[1:])
            for alias in node.names:
                inner = (*base, alias.name)
                is_inner = is_module(package, inner)
                imports.append(Import(node.lineno, inner if is_inner else base, None if is_inner else alias.name))
    return imports


def place_problem(name: Name) -> str | None:
    """What is wrong with where a module is, if anything: it must have a place in the order."""
    if name and name[0] not in LAYERS:
        return f"{dotted(name[:1])} has no place in {PAGE.name}"
    if name[:1] == ("core",) and len(name) > 1 and name[1] not in CORE:
        return f"{dotted(name[:2])} has no place in {PAGE.name}"
    return None


def import_problem(importer: Name, importer_is_init: bool, found: Import) -> str | None:
    """What is wrong with an import, if anything. The importer has a place in the order."""
    target = found.target
    if target is None:
        return "imports name the whole module, from antiphon on"
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
        for item in imports_of(path.read_text(encoding="utf-8"), package):
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
    """Places that import each other, directly or through others, imports inside functions and for types included."""
    files = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    needs = set()
    for name, path in files.items():
        targets = {
            ".".join(item.target) for item in imports_of(path.read_text(encoding="utf-8"), package) if item.target
        }
        inside = {target if target in files else f"{target}.__init__" for target in targets} & files.keys()
        needs |= {(place(name), place(target)) for target in inside}
    graph = igraph.Graph.TupleList(needs, directed=True)
    components = graph.connected_components(mode="strong")
    return sorted(sorted(graph.vs[members]["name"]) for members in components if len(members) > 1)


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
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("loaded:"), done.stderr
    return last.split()[1:]


@pytest.mark.slow  # as is what a machine takes, too, which imports it
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


def test_a_machine_alone_is_light() -> None:
    code = (
        "import antiphon\n"
        "antiphon.topology('dgx1v')\n"
        "loaded = [name for name in sys.modules if name.startswith('antiphon.select.')]\n"
        "assert loaded == ['antiphon.select.parse_request'], loaded"
    )
    assert heavy_after(code) == []


def test_all_that_is_offered_is_there() -> None:
    from antiphon import select

    assert all(hasattr(select, name) for name in select.__all__)
    assert not hasattr(select, "nothing")


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
    "core/routes.py": "from antiphon.core.topology import Link\nfrom antiphon import errors\n",
    "core/bounds/__init__.py": "from antiphon.core.bounds.cut import cut\n",
    "core/bounds/cut.py": "from antiphon.core.bounds import flow\n",
    "core/bounds/flow.py": (
        "def f():\n    from antiphon.core.bounds.dual import d\n    from antiphon.core import routes\n"
    ),
    "core/bounds/dual.py": "d = 1\n",
    "core/plan.py": "from antiphon.core.bounds import lower_bound\nfrom antiphon import __version__\n",
    "registry.py": "import antiphon.core.plan\n",
    "planners/__init__.py": "from antiphon.planners import ring\n",
    "planners/_trees.py": "from antiphon.core import topology\n",
    "planners/tree.py": "from antiphon.planners._trees import grow\n",
    "planners/ring.py": "from antiphon.planners._trees import grow\nfrom antiphon.planners import _trees, tree\n",
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
        pytest.param("registry.py", "from antiphon import planners", "planners comes after", id="from-package"),
        pytest.param("core/routes.py", "from antiphon.core.plan import P", "core.plan comes after", id="later-core"),
        pytest.param("core/routes.py", "from antiphon.core import Plan", "the front of core", id="front-of-core"),
        pytest.param("planners/tree.py", "from antiphon.planners.packed._kernel import K", "is private", id="private"),
        pytest.param("cli.py", "from antiphon.planners import _trees", "is private", id="private-from-its-front"),
        pytest.param("planners/tree.py", "from antiphon.planners import Ring", "its own front", id="own-front"),
        pytest.param("units.py", "def f():\n    from antiphon.core import plan", "core comes after", id="in-function"),
        pytest.param("units.py", "try:\n    import antiphon.cli\nexcept ImportError:\n    pass", "cli", id="in-try"),
        pytest.param("planners/__init__.py", "from antiphon.cli import main", "cli comes after", id="init-later"),
        pytest.param("core/routes.py", "from . import topology", "imports name the whole module", id="relative"),
        pytest.param("core/routes.py", "from antiphon import Plan", "only __version__", id="from-the-top"),
        pytest.param("core/newcomer.py", "", "core.newcomer has no place in", id="unknown-core-file"),
        pytest.param("core/fresh/part.py", "", "core.fresh has no place in", id="unknown-core-package"),
        pytest.param("other.py", "", "antiphon.other has no place in", id="unknown-layer"),
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
        "planners/_c.py": "if TYPE_CHECKING:\n    from antiphon.planners._a import A\n",
        "planners/_d.py": "from antiphon.planners._a import A\n",
    }
    assert problems(tmp_path, {**GOOD, **files}) == []
    assert circles(tmp_path / "antiphon") == [["planners._a", "planners._b", "planners._c"]]


def test_a_circle_of_rooms_is_caught(tmp_path: Path) -> None:
    """No file imports itself by way of others here, but neither room can be read before the other."""
    files = {
        "cost/flows/tables.py": "from antiphon.cost.loggp.work import W\n",
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
    text = "from antiphon import cli, units\n\n\ndef f():\n    from antiphon.core import plan\n"
    found = problems(tmp_path, {**GOOD, "errors.py": text})
    assert [line.split(": ")[0] for line in found] == ["errors.py:1", "errors.py:1", "errors.py:5"]


# ---- others reach a part through its public names ----

OUTSIDE = ("tests", "fuzz", "bench", "examples", "release")
# What still takes a private name in an import or a text, and why nothing public will do; ruff has the attributes.
TAKEN: dict[tuple[str, str], str] = {
    ("release/notebooks.py", "_repr_html_"): "the name is Jupyter's",
    ("tests/test_fuzz.py", "_find_overloads"): "a verifier is made lax in one part, to see it caught",
    ("tests/test_fuzz.py", "_no_hub"): "as above",
    ("tests/test_fuzz.py", "_own_crossings"): "as above",
    ("tests/test_interrupts.py", "_app"): "a signal comes while a command prints a warning",
    ("tests/test_sccl_group.py", "_apply_after"): "it counts products of permutations: a cost that nothing tells",
    ("tests/test_tune_stopped.py", "_process"): "nobody can ask for processes that take too long to get ready",
}
PRIVATE = re.compile(
    r"\bantiphon(?:\.\w+)*\.(_[a-z]\w*)"  # in a dotted name
    r"|\bfrom antiphon[\w.]* import \(?(?:[\w,\s]+,\s*)?(_[a-z]\w*)"
    r"""|["'](_[a-z]\w*)["']"""  # a text of that name alone, as in patches
)


def private_names(text: str, words: set[str]) -> list[str]:
    """Private names of antiphon in a file outside of it. `words`: those of all files of antiphon."""
    return [name for match in PRIVATE.finditer(text) for name in match.groups() if name in words]


def test_nobody_outside_takes_private_names() -> None:
    root = SRC.parent
    source = "".join(path.read_text(encoding="utf-8") for path in (SRC / "antiphon").rglob("*.py"))
    words = set(re.findall(r"\b_[a-z]\w*", source))
    taken = {
        (str(path.relative_to(root)), name)
        for folder in OUTSIDE
        for path in (root / folder).rglob("*.py")
        if path != Path(__file__).resolve()  # whose examples are of names that nobody has
        for name in private_names(path.read_text(encoding="utf-8"), words)
    }
    assert taken == TAKEN.keys(), "ask the folder that it is private to, or let that offer it under a plain name"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from antiphon.select import tune", []),
        ("from antiphon.select._pool import run_tasks", ["_pool"]),
        ("from antiphon.select import tune, _pool", ["_pool"]),
        ("import antiphon.select._pool", ["_pool"]),
        ("patch.setattr(tuner, '_cores', 3)", ["_cores"]),
        ("patch.setattr('antiphon.select.tuner._cores', 3)", ["_cores"]),
        ("CASES = [(tuner, '_nobodys')]", []),
        ("print('_cores is a word')", []),
    ],
)
def test_a_private_name_is_seen(text: str, names: list[str]) -> None:
    assert private_names(text, {"_cores", "_pool"}) == names
