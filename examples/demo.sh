#!/bin/sh
# From a machine's links to an allreduce that is proven correct and has run. `make demo` calls this.
set -eu
cd "$(dirname "$0")/.."

antiphon=${ANTIPHON:-.venv/bin/antiphon}
out=build/demo
mkdir -p "$out"

step() {
    printf '\n$ antiphon %s\n' "$*"
    "$antiphon" "$@"
}

step topology show dgx1v
step bound allreduce dgx1v
step plan allreduce dgx1v --planner ring -o "$out/plan.json"
step verify "$out/plan.json"
step run "$out/plan.json" --nbytes 16MiB --on local
