#!/bin/sh
# From a machine's links to the best allreduce for every size, proven correct, run, and shown on a page.
# `make demo` calls this.
set -eu
cd "$(dirname "$0")/.."

antiphon=${ANTIPHON:-antiphon}
out=build/demo
mkdir -p "$out"

step() {
    printf '\n$ antiphon %s\n' "$*"
    "$antiphon" "$@"
}

step topology show dgx1v
step tune allreduce dgx1v --nbytes 1KB:1GB -o "$out/plan.json" -o "$out/report.html" -o "$out/chart.svg"
step verify "$out/plan.json"
step run "$out/plan.json" --nbytes 16MiB --on local

printf '\nThe report, for any browser: %s\n' "$out/report.html"
