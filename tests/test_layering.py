"""The order of imports inside antiphon: each module imports only from what comes before it.

Read off the source with `ast`, so imports inside functions and relative imports count as well. And of those outside,
tests above all, none takes a private name.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

# A layer is a file or a folder of src/antiphon; it may import from those before it.
LAYERS = (
    "errors",
    "deprecations",
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
    "author",
    "runtimes",
    "reproduce",
    "show",
    "torch",
    "api",
    "available",
    "comm",
    "fit",
    "frontier",
    "lab",
    "machines",
    "measure",
    "native",
    "pages",
    "papers",
    "replay",
    "traces",
    "cli",
    "__main__",
)

# A module of core is a file or a package; it may import from those before it.
CORE = (
    "portable",
    "columns",
    "cache",
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
    "stairs",
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
    "jsontext",
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


class File(NamedTuple):
    """What is read off a file: all that it imports of antiphon, and the private names that it gives."""

    imports: list[Import]
    own: set[str]


@cache  # several tests ask for all files, and to go through a tree takes long
def read(text: str, package: Path, folder: Name) -> File:
    """Of a file of the package `folder`."""
    nodes = list(ast.walk(ast.parse(text)))
    return File(list(imported(nodes, package, folder)), own_names(nodes))


def imported(nodes: list[ast.AST], package: Path, folder: Name) -> Iterator[Import]:
    for node in nodes:
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
        for item in read(path.read_text(encoding="utf-8"), package, folder).imports:
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
        found = read(path.read_text(encoding="utf-8"), package, folder).imports
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
        timeout=1000,
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
        pytest.param("registry.py", "from antiphon import planners", "planners comes after", id="from-package"),
        pytest.param("core/routes.py", "from antiphon.core.plan import P", "core.plan comes after", id="later-core"),
        pytest.param("core/routes.py", "from antiphon.core import Plan", "the front of core", id="front-of-core"),
        pytest.param("planners/tree.py", "from antiphon.planners.packed._kernel import K", "is private", id="private"),
        pytest.param("cli.py", "from antiphon.planners import _trees", "is private", id="private-from-its-front"),
        pytest.param("planners/tree.py", "from antiphon.planners import Ring", "its own front", id="own-front"),
        pytest.param("units.py", "def f():\n    from antiphon.core import plan", "core comes after", id="in-function"),
        pytest.param("units.py", "try:\n    import antiphon.cli\nexcept ImportError:\n    pass", "cli", id="in-try"),
        pytest.param("core/routes.py", "from ..cli import main", "cli comes after core", id="relative-up"),
        pytest.param("planners/tree.py", "from .packed import _kernel", "is private", id="relative-private"),
        pytest.param("planners/__init__.py", "from ..cli import main", "cli comes after", id="init-later"),
        pytest.param("core/routes.py", "from ....other import x", "leaves the package", id="relative-out"),
        pytest.param("core/routes.py", "from antiphon import Plan", "only __version__", id="from-the-top"),
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
    text = "from antiphon import cli, units\n\n\ndef f():\n    from .core import plan\n"
    found = problems(tmp_path, {**GOOD, "errors.py": text})
    assert [line.split(": ")[0] for line in found] == ["errors.py:1", "errors.py:1", "errors.py:5"]


# ---- others reach a part through its public names ----

OUTSIDE = ("tests", "fuzz", "bench", "examples", "release")
OF_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}  # public, by the words of NamedTuple
OF_GROUPS = {  # PyTorch calls so
    "_allgather_base", "_device_types", "_end_coalescing", "_get_backend", "_get_sequence_number_for_group",
    "_reduce_scatter_base", "_set_sequence_number_for_group", "_start_coalescing", "_timeout",
    "_wait_for_pending_works",
}  # fmt: skip

# What still takes a private name, and why nothing public will do.
TAKEN: dict[tuple[str, str], str] = {
    ("bench/bench_mismatch.py", "_ratio"): "no private name: columns end so",
    ("tests/test_bench_kept.py", "_common"): "what the benches share, which stands beside them",
    ("tests/test_fuzz.py", "_at_once"): "a verifier is made lax in one part, to see it caught",
    ("tests/test_fuzz.py", "_no_hub"): "as above",
    ("tests/test_fuzz.py", "_own"): "as above",
    ("tests/test_sccl_group.py", "_apply_after"): "it counts products of permutations: a cost that nothing tells",
    ("tests/test_tune_stopped.py", "_process"): "nobody can ask for processes that take too long to get ready",
    ("tests/torch_between.py", "_set_default_timeout"): "PyTorch's own name for it: backends have no other",
    ("tests/torch_suite.py", "_DistTestBase"): "PyTorch's own, of a module that may come from a file",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *OF_TUPLES, *OF_GROUPS}


def own_names(nodes: list[ast.AST]) -> set[str]:
    """The private names that a file gives: to functions and classes, variables, and attributes of `self`."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def strangers(nodes: list[ast.AST]) -> set[str]:
    """What a file calls modules, or parts of modules, that are not of antiphon."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names if not of_antiphon(a.name)}
        elif isinstance(node, ast.ImportFrom) and not of_antiphon(node.module or ""):
            found |= {a.asname or a.name for a in node.names}
    return found


def of_antiphon(module: str) -> bool:
    return module.partition(".")[0] == "antiphon"


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def taken(tree: ast.AST, given: set[str]) -> Iterator[tuple[int, str]]:
    """Private names of antiphon that a file outside imports, asks an object for, or names in a text, as patches and
    programs in texts do. `given`: all that antiphon gives."""
    nodes = list(ast.walk(tree))
    own = own_names(nodes) | {node.arg for node in nodes if isinstance(node, ast.arg)}
    foreign = strangers(nodes)
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [part for a in node.names if of_antiphon(a.name) for part in a.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and of_antiphon(node.module or ""):
            names = [*str(node.module).split("."), *(a.name for a in node.names)]
        elif isinstance(node, ast.Attribute) and not is_self(node.value) and root_of(node.value) not in foreign:
            names = [node.attr] if node.attr not in own else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value in given - own else named_in(node.value)
        for name in dict.fromkeys(filter(is_private, names)):
            yield getattr(node, "lineno", 0), name


def may_take(text: str, given: set[str]) -> bool:
    """Whether a file has any word that `taken` might tell: to read all as Python takes seconds."""
    asked = re.search(r"(?<!\bself)(?<!\bcls)\._[A-Za-z]|\bimport\b[^\n]*\b_[A-Za-z]", text)
    return asked is not None or not given.isdisjoint(re.findall(r"\b_[A-Za-z]\w*", text))


def named_in(text: str) -> list[str]:
    """The parts of all dotted names of antiphon in a text, and what it imports from there."""
    found = [part for name in re.findall(r"\bantiphon(?:\.\w+)+", text) for part in name.split(".")]
    imported = re.findall(r"\bfrom antiphon[\w.]* import ([\w, ]+)", text)
    return found + [name for names in imported for name in re.split(r"[, ]+", names)]


def names_given(package: Path) -> set[str]:
    files = list(package.rglob("*.py"))
    found = {path.stem for path in files if is_private(path.stem)}
    texts = [(path.read_text(encoding="utf-8"), path.relative_to(package).parent.parts) for path in files]
    return found.union(*(read(text, package, folder).own for text, folder in texts))


def test_nobody_outside_takes_private_names() -> None:
    root, given = SRC.parent, names_given(SRC / "antiphon")
    found: dict[tuple[str, str], int] = {}
    for folder in OUTSIDE:
        for path in sorted((root / folder).rglob("*.py")):
            where = str(path.relative_to(root))
            text = path.read_text(encoding="utf-8")
            if path != Path(__file__).resolve() and may_take(
                text, given
            ):  # whose examples are of names that nobody has
                for line, name in taken(ast.parse(text), given):
                    found.setdefault((where, name), line)
    more = [f"{where}:{line}: takes {name}" for (where, name), line in found.items() if (where, name) not in TAKEN]
    assert not more, "\n".join([*more, "ask the room that it is private to, or let that offer it under a plain name"])
    assert not TAKEN.keys() - found.keys()  # nobody takes these any more: they must not stay listed


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from antiphon.select import tune", []),
        ("from antiphon.select._pool import run_tasks", ["_pool"]),
        ("from antiphon.select import _pool", ["_pool"]),
        ("import antiphon.select._pool", ["_pool"]),
        ("import antiphon.select.tuner as t\npatch(t._cores)", ["_cores"]),
        ("def test(found):\n    assert found.tasks._kept[0]", ["_kept"]),
        ("from antiphon.select import tuner\npatch.setattr(tuner, '_cores', 3)", ["_cores"]),
        ("patch.setattr('antiphon.select.tuner._cores', 3)", ["_cores"]),
        ("run('from antiphon.select import tune, _pool')", ["_pool"]),
        ("CASES = [(tuner, '_cores')]", ["_cores"]),
        ("from os import path\nimport os\nos._exit(1)\npath._get_sep()", []),
        ("row._replace(a=1)\nrow._fields\nx.__dict__", []),
        ("class A:\n    def _own(self):\n        return self._kept\n\n\nA()._own()", []),
        ("class A:\n    def __init__(self):\n        self._mine = 1\n\n\nA()._mine", []),
        ("print('_cores is a word, _nobody_has')\nprint('_nobodys')", []),
    ],
)
def test_what_takes_a_private_name_is_seen(text: str, names: list[str]) -> None:
    given = {"_cores", "_pool", "_kept"}
    assert [name for _, name in taken(ast.parse(text), given)] == names
    assert may_take(text, given) or not names
