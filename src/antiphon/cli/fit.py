"""The commands `fit genmodel`, `memory`, `loggp` and `lowering`: parameters of cost models from measurements.

A lowering is a method to run a plan on GPUs: one kernel, a kernel per step, or copies by copy engines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api import fitting
from antiphon.cli.arguments import Repeat, old_option, output_option
from antiphon.cli.output import check_outputs, emit, sort_outputs, write_pictures, written_lines
from antiphon.cli.planning import say
from antiphon.cost.profile import Profile, as_profile, save_profile
from antiphon.errors import Invalid, unknown
from antiphon.options import parse_options
from antiphon.show.columns import paragraph
from antiphon.units import exact, parse_bandwidth, parse_size

KnownValues = Annotated[
    list[str] | None,
    typer.Option(
        "--known", metavar="KEY=VALUE",
        help="beta, gamma, delta (seconds per byte sent, combined, accessed; beta also 10Gbit/s), or bandwidth: that "
        "of such a link in the topology; repeatable",
    ),
]  # fmt: skip
Measurements = Annotated[Path, typer.Argument(metavar="MEASUREMENTS.csv", help="written by bench (docs/fitting.md)")]
Name = Annotated[str, old_option("--name", instead="-o NAME.json")]


def genmodel_command(
    measurements: Measurements,
    known_values: KnownValues = None,
    memory: Annotated[
        Path | None, typer.Option("--memory", metavar="PROFILE", help="profile of `fit memory`, for gamma and delta")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="kind of link, as the topology names it")
    ] = "link",
    links: Annotated[
        int, typer.Option("--links", min=1, metavar="N", help="links between two ranks (2: through one switch)")
    ] = 2,
    output: Annotated[list[Path] | None, output_option("fit genmodel")] = None,
    name: Name = "",
) -> None:
    """Fit GenModel's alpha, beta, gamma, delta, epsilon and w_t to times of plans on one switch.

    Prints the parameters that the measurements determine, and how well; others are neither shown nor written.
    """
    from antiphon.cost.fit import genmodel_profile, list_missing_figures
    from antiphon.show.fit import genmodel_svg, genmodel_text

    files = sort_outputs("fit genmodel", output)
    known_texts = _parse_known(known_values, ("beta", "gamma", "delta", "bandwidth"))
    bandwidth = known_texts.pop("bandwidth", "")
    nominal = parse_bandwidth(bandwidth, "--known bandwidth") if bandwidth else None
    result = fitting.genmodel(measurements, **_known_parameters(known_texts, memory))
    missing = list_missing_figures(result, nominal)
    out = files["profile"]
    title = name or _file_stem(*out, measurements)
    profile, lines = _save(lambda: genmodel_profile(result, kind, links=links, bandwidth=nominal, name=title), out)
    if out and missing:
        lines += paragraph(f"not in it: {', '.join(missing)}", first="  ", rest="    ")
    lines += write_pictures(lambda: genmodel_svg(result), files["picture"])
    value = {**result.as_json(), "profile": profile, "left_out": missing}
    emit(value, "\n".join([genmodel_text(result), *lines]))


def memory_command(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="CSV", help="fit these measurements (vectors,nbytes,seconds) instead of measuring"
        ),
    ] = None,
    vectors: Annotated[int, typer.Option("--vectors", metavar="N", help="add 2, 3, ... N vectors")] = 15,
    nbytes: Annotated[
        str, typer.Option("--nbytes", metavar="SIZE", help="size of a vector: larger than the caches")
    ] = "32MiB",
    repeat: Repeat = 5,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="threads that combine in one rank of your program")
    ] = 1,
    on: Annotated[
        str, typer.Option("--on", metavar="WHERE", help="measure the GPU runtime instead: cuda, hip or threads")
    ] = "",
    output: Annotated[list[Path] | None, output_option("fit memory")] = None,
    name: Name = "",
) -> None:
    """GenModel's gamma and delta: adds x vectors at once on this machine, for x = 2, 3, ...

    T(x) = (x + 1) S delta + (x - 1) S gamma for vectors of S bytes (equation 5 of the GenModel paper).
    """
    from antiphon.cost.fit import memory_profile, read_addition_times, write_addition_times
    from antiphon.runtimes.measure.bench_memory import bench_memory
    from antiphon.show.fit import memory_svg, memory_text

    files = sort_outputs("fit memory", output)
    if source is not None:
        rows = read_addition_times(source)
    else:
        rows = bench_memory(
            vectors, parse_size(nbytes, "--nbytes"), repeat=repeat, threads=threads, on=on, progress=say
        )
    for path in files["measurements"]:
        write_addition_times(rows, path)
    result = fitting.memory(rows)
    title = name or _file_stem(*files["profile"], source or Path("memory"))
    profile, lines = _save(lambda: memory_profile(result, title), files["profile"])
    lines = [
        *written_lines(*files["measurements"]),
        *lines,
        *write_pictures(lambda: memory_svg(result), files["picture"]),
    ]
    emit({**result.as_json(), "profile": profile}, "\n".join([memory_text(result), *lines]))


def loggp_command(
    measurements: Measurements,
    place: Annotated[
        str,
        typer.Option("--within", metavar="NAME", help="place that both ranks share: host, rack, ... (default: any)"),
    ] = "",
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="PROFILE", help="add these figures to this profile: a level, innermost first"),
    ] = None,
    known_values: KnownValues = None,
    output: Annotated[list[Path] | None, output_option("fit loggp")] = None,
    name: Name = "",
) -> None:
    """Fit LogGP's L, o_s, o_r, g and G, per protocol regime, to parametrized round trips between two ranks.

    Parameters that come out negative or that nothing determines get no value. --into alone writes the profile in place.
    """
    from antiphon.cost.fit import list_missing_loggp_figures, loggp_profile
    from antiphon.show.fit import loggp_svg, loggp_text

    files = sort_outputs("fit loggp", output)
    out = files["profile"]
    if into is not None and not out:
        check_outputs({"--into": into})
        out = [into]
    base = as_profile(into) if into is not None else None
    # seconds per byte combined; by default combining costs nothing
    gamma = _known_parameters(_parse_known(known_values, ("gamma",))).get("gamma", 0.0)
    result = fitting.loggp(measurements)
    title = name or _file_stem(*out, measurements)
    missing = list_missing_loggp_figures(result)
    profile, lines = _save(lambda: loggp_profile(result, within=place, into=base, gamma=gamma, name=title), out)
    if out and missing:
        lines += paragraph(f"in it, but not determined: {', '.join(missing)}", first="  ", rest="    ")
    lines += write_pictures(lambda: loggp_svg(result), files["picture"])
    value = {**result.as_json(), "profile": profile, "left_out": missing}
    emit(value, "\n".join([loggp_text(result), *lines]))


def lowering_command(
    measurements: Measurements,
    output: Annotated[list[Path] | None, output_option("fit lowering")] = None,
    name: Name = "",
) -> None:
    """Fit the costs of lowerings, the methods to run a plan on GPUs: of a call, step and copy, and the bandwidth share.

    The measurements are those of `bench PLAN --on cuda:lowering=copies --fit FILE`, of several plans and lowerings.
    """
    from antiphon.show.fit import lowering_text

    out = sort_outputs("fit lowering", output)["profile"]
    result = fitting.lowering(measurements)
    profile, lines = _save(lambda: result.profile(name or _file_stem(*out, measurements)), out)
    emit({**result.as_json(), "profile": profile}, "\n".join([lowering_text(result), *lines]))


def _file_stem(*paths: Path) -> str:
    """Return the name of a profile: that of the first of these files, without its endings."""
    return paths[0].name.partition(".")[0]


def _parse_known(texts: list[str] | None, names: Sequence[str]) -> dict[str, str]:
    """Return the texts of --known by parameter; only these parameters are accepted."""
    known_texts = parse_options(texts or (), "--known", f"{names[0]}=4.7e-11")
    for key in known_texts:
        if key not in names:
            raise unknown("parameter of --known", key, names)
    return known_texts


def _known_parameters(known_texts: Mapping[str, str], memory: Path | None = None) -> dict[str, float]:
    """Return the user's parameters by name, in seconds per byte: those of --memory and of --known."""
    parameters = {}
    if memory is not None:
        profile = as_profile(memory)
        parameters = {key: value for key, value in (("gamma", profile.gamma), ("delta", profile.delta)) if value}
        if not parameters:
            raise Invalid(f"--memory: {memory} states neither gamma nor delta; `antiphon fit memory -o` writes them")
    for key, text in known_texts.items():
        if key in parameters:
            raise Invalid(f"{key} is given twice: by --known and by --memory; leave one of them out")
        parameters[key] = _seconds_per_byte(text, f"--known {key}")
    return parameters


def _seconds_per_byte(text: str, option: str) -> float:
    """Parse a cost in seconds per byte; beta may also be a bandwidth."""
    if option == "--known beta" and re.search(r"[a-zA-Z]/s|[a-zA-Z]ps", text):  # GB/s, Gbps
        return float(1 / parse_bandwidth(text, option))
    seconds = exact(text, option)
    if not 0 <= seconds <= Fraction(1):
        raise Invalid(f"{option}: expected seconds per byte, such as 4.7e-11, got {text}")
    return float(seconds)


def _save(make_profile: Callable[[], Profile], out: Sequence[Path]) -> tuple[dict[str, Any] | None, list[str]]:
    """Write the profile to these files. Return it as JSON, and a line for each written file.

    If the measurements determine too little for a profile, return (None, []), or raise Invalid if there is a file.
    """
    try:
        profile = make_profile()
    except Invalid:
        if out:
            raise
        return None, []
    for path in out:
        save_profile(profile, path)
    return profile.as_json(), written_lines(*out)
