"""List the entries of the registry (topologies, planners, models, formats, runtimes), as rows (JSON) and as text.

`antiphon list planners` prints `entries_text`, `antiphon list planners ring` prints `entry_text`. Runtimes are listed
by `runtimes_text`, formats by cli/listing.py, as both add what must be installed. Everything comes from the registry's
entries: their capabilities, declared options and the docstrings of their functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from antiphon.core.collective import KINDS
from antiphon.registry import Entry, declared_options, find, table
from antiphon.show.columns import paragraph, wrap_table
from antiphon.units import format_size

# Pages of the documentation that several planners share. Each planner has a section named after it.
SHARED_PAGES = {
    "index": (
        "direct", "binomial-tree", "double-binary-tree", "recursive-doubling", "halving-doubling", "bruck", "pairwise",
        "parameter-server", "colocated-ps", "hierarchical-ps", "ring", "multi-ring", "hierarchical-ring", "relay",
        "greedy", "flows", "dispatch",
    ),
    "compose": ("groups",),
    "radix": ("kring", "recmult", "permrecmult"),
    "switches": ("nvls", "sharp", "nvls-tree", "gentree"),
    "trees": ("trees", "shallow", "blink"),
}  # fmt: skip


def _page_of_planner(name: str) -> str:
    """Return the documentation of a planner: its section of a shared page, or a page of its own."""
    for page, planners in SHARED_PAGES.items():
        if name in planners:
            return f"docs/planners/{page}.md#{name}"
    return f"docs/planners/{name}.md"


def list_entries(kind: str) -> list[dict[str, Any]]:
    """Return a row per entry of a kind ("planner"), sorted by name."""
    return [_make_row(kind, name, entry) for name, entry in sorted(table(kind).items())]


def _make_row(kind: str, name: str, entry: Entry[Any]) -> dict[str, Any]:
    """Return name, summary, capabilities and, for planners, models and formats, the names of options of an entry.

    The registry calls formats "backend". The options of runtimes are among their capabilities.
    """
    capabilities = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(entry.can).items()}
    options = {"options": list(entry.options)} if kind in ("planner", "model", "backend") else {}
    return {"name": name, "about": entry.about, **capabilities, **options}


def entry_row(kind: str, name: str) -> dict[str, Any]:
    """Return one row of `list_entries`, with defaults of options (null: automatic) and the function's docstring."""
    entry = find(kind, name)
    function = entry.load()
    # a model's parameter `profile` is set by the option --profile of commands, not in the name of the model
    options = [p for p in entry.options.values() if p.name != "profile"]
    defaults = {p.name: _plain_value(p.default) for p in options if p.default is not p.empty}
    required = [p.name for p in options if p.default is p.empty]
    option_facts = {
        key: {"about": option.about, "unit": option.unit, "range": option.range_text}
        for key, (_, option) in declared_options(function).items()
    }
    if kind == "runtime":  # whose options are declared with those of all runtimes
        from antiphon.runtimes.measure.case import OPTIONS, TIMEOUT_ABOUT

        about = {key: OPTIONS[key] for key in entry.can.options} | {"timeout": TIMEOUT_ABOUT}
        option_facts = {key: {"about": text, "unit": "", "range": ""} for key, text in about.items()}
    details = _summarize_docstring(inspect.getdoc(function) or "")
    page = _page_of_planner(name) if kind == "planner" and entry.is_builtin else ""
    row = {
        **_make_row(kind, name, entry),
        "needed": required,
        "defaults": defaults,
        "about_options": option_facts,
        "details": details,
    }
    return {**row, "page": page} if page else row


def _summarize_docstring(docstring: str) -> str:
    """Return a docstring as one paragraph; parameters in NumPy style become "`names`: text"."""
    text, _, parameters = docstring.partition("Parameters\n----------\n")
    parameter_texts = re.findall(r"^(\S.*)\n((?:[ \t]+.*\n?)+)", parameters, re.MULTILINE)
    sentences = [text, *(f"`{names}`: {meaning}" for names, meaning in parameter_texts)]
    return " ".join(" ".join(sentences).split())


def entry_text(kind: str, row: Mapping[str, Any]) -> str:
    """Return one entry, a row of `entry_row`, as text."""
    defaults = [f"{name}={_default_text(value)}" for name, value in row["defaults"].items()]
    if kind == "runtime":
        # `timeout` is an option of every runtime; its default is that of runtimes.measure.case.How
        defaults = [*(f"{name}=" for name in row["options"]), "timeout=600s"]
    rows = [
        ("ranks", row.get("ranks", "")),
        ("collectives", _join_names(row.get("collectives", ""))),
        ("machines", row.get("topologies", "")),
        ("options", ", ".join([*(f"{name}= (needed)" for name in row["needed"]), *defaults]) or "none"),
        ("writes", _join_names(row.get("files", ""))),
        ("example", row.get("example", "")),
        ("page", row.get("page", "")),
    ]
    lines = wrap_table(head=[], rows=[[f"{name}:", text] for name, text in rows if text])
    option_rows = [[f"{name}:", _option_text(option)] for name, option in row["about_options"].items()]
    lines += ["", *wrap_table(head=[], rows=option_rows)] if option_rows else []
    return "\n".join([*paragraph(f"{row['name']}: {row['about']}", first=""), *lines, "", *paragraph(row["details"])])


def _option_text(option: Mapping[str, str]) -> str:
    return "; ".join(filter(None, [option["about"], option["unit"], option["range"]]))


def _default_text(value: Any) -> str:
    """Return a default as it would be written as an option."""
    return "auto" if value in (None, "") else str(value).lower() if isinstance(value, bool) else str(value)


def _plain_value(value: Any) -> Any:
    """Return a value that JSON can hold; others as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _join_names(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)


def entries_text(kind: str) -> str:
    """Return all entries of a kind as text, as wide as the terminal."""
    rows = list_entries(kind)
    if kind == "topology":
        lines = wrap_table(["topology", "ranks", "about"], [[row["name"], row["ranks"], row["about"]] for row in rows])
        return "\n".join([*lines, "", *paragraph(_SIZES_NOTE)])
    if kind == "model":
        head = ["model", "collectives", "topologies", ""]
        return "\n".join(
            wrap_table(head, [[row["name"], row["collectives"], row["topologies"], row["about"]] for row in rows])
        )
    # planners: grouped by the machines that they support
    machine_kinds = dict.fromkeys(str(row["topologies"]) for row in rows)
    lines = []
    for machine_kind in machine_kinds:
        lines += ["", *paragraph(f"machines: {machine_kind}", first="")]
        lines += wrap_table(
            head=[], rows=[[row["name"], _planner_text(row)] for row in rows if row["topologies"] == machine_kind]
        )
    return "\n".join([*lines[1:], "", *paragraph(_PLANNERS_NOTE)])  # without the empty line before the first group


def runtimes_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the runtimes as text, from rows of the `list` command.

    `library`: the library that a runtime is measured beside. `missing`: what must be installed first.
    """
    table_rows = []
    for row in rows:
        texts = [row["about"], f"compared with: {row['library']}"] if row["library"] else [row["about"]]
        if cuts := row.get("cuts"):
            texts.append(
                f"cuts messages of {', '.join(cuts['collectives'])} into up to {cuts['most']} slices of at least "
                f"{format_size(cuts['piece'])} if the plan sets no pieces"
            )
        texts += [f"options: {', '.join(row['options'])}"] if row["options"] else []
        texts += [f"missing: {row['missing']}"] if row["missing"] else []
        table_rows.append([row["name"], "\n".join(texts)])
    return "\n".join([*wrap_table(["runtime", ""], table_rows), "", *paragraph(_RUNTIMES_NOTE)])


_RUNTIMES_NOTE = (
    "Options follow a colon: --on mpi:mpiexec=srun,timeout=60s; `antiphon list runtimes NAME` explains them. "
    "compared with: what bench and tune measure beside plans."
)
_SIZES_NOTE = (
    "Parameters follow a colon: ring:ranks=8, torus:dims=4x4, tree:fanouts=4x8, cluster:box=dgx1v,boxes=4, "
    "ring:ranks=8,bandwidth=100Gbit/s,latency=2us. `antiphon topology show NAME` shows the machine."
)
_PLANNERS_NOTE = (
    "custom: a relation of your own, or several process groups at once. `antiphon list planners NAME` explains a "
    "planner's options, `antiphon plan allreduce dgx1v --planner ring:pieces=4` sets one."
)


def _planner_text(row: dict[str, Any]) -> str:
    """Return the summary of a planner, its collectives and its options."""
    supported = row["collectives"]
    missing = [kind for kind in KINDS if kind not in supported]
    collectives = ", ".join(supported)
    if len(missing) <= 2:
        collectives = "all" + (f" but {' and '.join(missing)}" if missing else "")
        collectives += ", custom" if "custom" in supported else ""
    options = f"; options: {', '.join(row['options'])}" if row["options"] else ""
    return f"{row['about']}\nfor {collectives}{options}"
