#!/bin/sh
# The sdist, the wheels made from it (one for any platform; with the compiled engine for Linux on x86-64 and aarch64), and
# each of them installed alone in an empty environment and tried there, without a compiler and without the source tree.
# `make dist` calls this: dist.sh PYTHON [OTHER PYTHON]...; wheels are tried under all of them. What it leaves: dist/.
set -eu
cd "$(dirname "$0")/.."

python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(pwd)
work=$root/build/dist
install="--quiet --disable-pip-version-check --root-user-action=ignore --no-compile" # as files are first imported
rm -rf dist "$work"
mkdir -p dist "$work/elsewhere"

environment() { # $1: where, $2: its Python; Debian's Python makes none with pip in it, so that the pip of this one installs
    "$2" -m venv --without-pip --clear "$1"
}

put() { # $1: where, then what
    into=$1
    shift
    # shellcheck disable=SC2086
    "$python" -m pip --python "$into/bin/python" install $install "$@"
}

quietly() { # $1: a log, printed if the command fails
    log=$1
    shift
    "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}

wheel() { # $1: folder of prebuilt libraries, or "", $2: its platform, or ""
    quietly "$work/wheel.log" env HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 ANTIPHON_MAN="$work/man" \
        ANTIPHON_RECORDINGS="$work/recordings" ANTIPHON_PREBUILT="$1" ANTIPHON_PLATFORM="$2" \
        "$python" -m pip wheel --no-deps --wheel-dir dist "dist/antiphon-$version.tar.gz"
}

try() { # $1: Python, $2: file, $3: engine, pure or sdist
    echo "== $2 in a bare environment of $("$1" --version)"
    environment "$work/bare" "$1"
    put "$work/bare" "$root/$2"
    cp release/smoke.py "$work/elsewhere/"
    (cd "$work/elsewhere" && env -i PATH="$work/bare/bin" HOME="$work/elsewhere" LC_ALL=C.UTF-8 \
        "$work/bare/bin/python" -I smoke.py "$version" "$3")
}

version=$("$python" -c 'import re; print(re.search(r"__version__ = \"(.+)\"", open("src/antiphon/__init__.py").read())[1])')
grep -q "^## \[$version\] - [0-9]\{4\}-[0-9][0-9]-[0-9][0-9]$" CHANGELOG.md ||
    { echo "CHANGELOG.md: has no dated heading of version $version, such as ## [$version] - 2026-01-31" >&2; exit 1; }

echo "== sdist, and wheels from it"
environment "$work/maker" "$python"
put "$work/maker" build virtualenv ziglang auditwheel # virtualenv stands in where Python has no ensurepip
quietly "$work/build.log" "$work/maker/bin/python" -m build --installer pip --sdist --outdir dist .
"$python" release/manpages.py "$work/man" >"$work/man.log"
quietly "$work/recordings.log" "$python" release/record_tunings.py "$work/recordings"
wheel "" ""
for machine in x86_64 aarch64; do
    tag=$("$python" release/prebuilt.py "$work/$machine" "$machine" "$work/maker/bin/python" -m ziglang)
    wheel "$work/$machine" "$tag"
    "$work/maker/bin/auditwheel" show "dist/antiphon-$version-py3-none-$tag.whl" | tr '\n' ' ' |
        grep -o 'following platform tag: *"[a-z0-9_]*"' || true
done

try "$python" "dist/antiphon-$version.tar.gz" sdist
for each in "$@"; do
    try "$each" "dist/antiphon-$version-py3-none-any.whl" pure
    for file in "dist/antiphon-$version-py3-none-"*"_$(uname -m).whl"; do
        [ ! -e "$file" ] || [ "$(uname -s)" != Linux ] || try "$each" "$file" engine
    done
done
rm -rf "$work"
ls -l dist
