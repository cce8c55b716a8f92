"""Whether network namespaces can be made here."""

import os
import shutil
import sys
from functools import cache

import antiphon
from antiphon.errors import AntiphonError


@cache
def why_no_lab() -> str:
    """Empty where a lab can be made; else the reason."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux"
    if any(shutil.which(program) is None for program in ("ip", "tc", "bridge", "cc")):
        return "needs iproute2 and a C compiler"
    from antiphon.runtimes.lab.keeping import bring_up, stop_keeper

    try:
        stop_keeper(bring_up(antiphon.topology("full:ranks=2"), "", f"probe-{os.getpid()}", leashed=True)[1])
    except AntiphonError as error:
        return str(error)
    return ""
