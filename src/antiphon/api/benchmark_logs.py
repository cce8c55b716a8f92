"""Check logs of nccl-tests, rccl-tests and OSU benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import path as path_of
from antiphon.api._checked import public

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.api._kinds import MachineLike, Path
    from antiphon.formats.benchmark_log import BenchmarkRun


@public
def check_log(
    file: Path, topology: MachineLike, *, only: Sequence[int] | None = None, library: str = ""
) -> list[dict[str, Any]]:
    """Compare a log of nccl-tests, rccl-tests or OSU with the times to expect on the machine.

    Parameters
    ----------
    file
        The log, pasted as it is.
    topology
        The machine that it ran on.
    only
        The ranks of the machine that took part. Default: all.
    library
        nccl or rccl, with options as of `predict_library`. Default: the library that the machine's GPUs are fitted for.

    Returns
    -------
    list of dict
        A row per run: collective, verdict (normal, slow, fast, wrong, cannot tell), text, causes (the likeliest first),
        notes, rows (nbytes; seconds: measured; modelled: seconds that the library's model predicts; bound: the lower
        bound in seconds; share: bound / seconds; ratio: seconds / modelled; verdict; ...), and what the log says of
        the job.

    Raises
    ------
    Invalid
        The file has no results of such a benchmark, or its ranks are not those of the machine.

    Examples
    --------
    ::

        antiphon.measure.check_log("nccl.log", "hgx-h100")[0]["verdict"]
    """
    from antiphon.core.reshape import keep
    from antiphon.core.reshape import only as keep_only
    from antiphon.select.log_check import check_runs

    machine = _inputs.machine(topology)
    # keep() renumbers the ranks, as the log counts them; the name is that of an allocation (TOPO:only=RANKS)
    if only is not None:
        machine = keep(machine, only, name=keep_only(machine, only).name).topology
    return check_runs(_read(file, with_incomparable=True), machine, library)


@public
def compare_logs(before: Path, after: Path) -> dict[str, Any]:
    """Find the sizes at which two logs of the same benchmark differ by more than the noise.

    Parameters
    ----------
    before, after
        Logs of nccl-tests, rccl-tests or OSU.

    Returns
    -------
    dict
        verdict (slower, faster, unchanged), and collectives: a row each with text, noise, libraries and rows (nbytes,
        before, after, change, verdict), and one more with in_place true where calls in place changed otherwise.

    Raises
    ------
    Invalid
        A file has no results of such a benchmark, or the two have no size in common.

    Examples
    --------
    ::

        antiphon.measure.compare_logs("before.log", "after.log")
    """
    from antiphon.select.log_check import compare_runs

    return compare_runs(_read(before), _read(after))


def _read(file: Any, with_incomparable: bool = False) -> list[BenchmarkRun]:
    """Return the runs in a log. `with_incomparable`: also those of no collective, or an unnamed one."""
    from antiphon.core.files import name_of, read_bytes, reading
    from antiphon.formats.benchmark_log import read_runs

    with reading(name_of(path_of(file, "file"))):
        return read_runs(read_bytes(file).decode("utf-8", "replace"), with_incomparable)
