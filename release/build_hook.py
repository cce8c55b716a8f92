"""What wheels of a release have beside the package: manual pages, recorded tunings, and for a platform the engine.

Hatchling calls this where HATCH_BUILD_HOOK_ENABLE_CUSTOM is set (release/dist.sh); any other build is of the package
alone. ANTIPHON_MAN names the folder of manual pages, ANTIPHON_RECORDINGS that of recorded tunings, ANTIPHON_PREBUILT
that of compiled libraries, ANTIPHON_PLATFORM the tag of their platform; without the last two the wheel is for any.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ReleaseHook(BuildHookInterface[Any]):
    """Adds files to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for page in sorted(Path(os.environ["ANTIPHON_MAN"]).glob("*.1")):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"
        build_data["force_include"][os.environ["ANTIPHON_RECORDINGS"]] = "antiphon/select/recordings"
        platform = os.environ.get("ANTIPHON_PLATFORM", "")
        if platform:
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"
            build_data["force_include"][os.environ["ANTIPHON_PREBUILT"]] = "antiphon/runtimes/engine/prebuilt"
