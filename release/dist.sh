#!/bin/sh
# The sdist, the wheel made from it, and each of them installed alone in an empty environment and tried there, without a
# compiler and without the source tree. `make dist` calls this. What it leaves: dist/.
set -eu
cd "$(dirname "$0")/.."

python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(pwd)
work=$root/build/dist
install="--quiet --disable-pip-version-check --root-user-action=ignore"
rm -rf dist "$work"
mkdir -p dist "$work/elsewhere"

environment() { # $1: where; Debian's Python makes none with pip in it, so that the pip of this one installs into it
    "$python" -m venv --without-pip --clear "$1"
}

put() { # $1: where, then what
    into=$1
    shift
    # shellcheck disable=SC2086
    "$python" -m pip --python "$into/bin/python" install $install "$@"
}

version=$("$python" -c 'import re; print(re.search(r"__version__ = \"(.+)\"", open("src/antiphon/__init__.py").read())[1])')
grep -q "^## \[$version\] - [0-9]\{4\}-[0-9][0-9]-[0-9][0-9]$" CHANGELOG.md ||
    { echo "CHANGELOG.md: has no dated heading of version $version, such as ## [$version] - 2026-01-31" >&2; exit 1; }

echo "== sdist, and a wheel from it"
environment "$work/maker"
put "$work/maker" build virtualenv # which stands in where Python has no ensurepip
"$work/maker/bin/python" -m build --installer pip --outdir dist . >"$work/build.log" 2>&1 ||
    { cat "$work/build.log" >&2; exit 1; }
for file in "dist/antiphon-$version-py3-none-any.whl" "dist/antiphon-$version.tar.gz"; do
    echo "== $file in a bare environment"
    environment "$work/bare"
    put "$work/bare" "$root/$file"
    cp release/smoke.py "$work/elsewhere/"
    (cd "$work/elsewhere" && env -i PATH="$work/bare/bin" HOME="$work/elsewhere" LC_ALL=C.UTF-8 \
        "$work/bare/bin/python" -I smoke.py "$version")
done
rm -rf "$work"
ls -l dist
