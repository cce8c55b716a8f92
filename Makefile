# `make` alone lists the targets. Each of them sets up build/venv by itself, from python3, pip and make alone,
# and later runs use that environment until pyproject.toml changes.

PYTHON ?= python3
# More arguments for pytest or the fuzzers: make test ARGS="-k ring", make fuzz ARGS=--short
ARGS ?=

# Tests hand plain lists and tuples to what takes columns and exact numbers.
LOOSER := arg-type list-item dict-item comparison-overlap return-value var-annotated

# Not .venv: that is the user's. `make VENV=FOLDER` takes another one, and never one that this file did not make.
VENV := build/venv
BIN := $(VENV)/bin
BOOTSTRAP := build/bootstrap
# pip would compile every file that it installs, on one core; each file is compiled when it is first imported instead.
# That is why this must not forbid it: without compiled files every process would compile PyTorch anew.
PIP_FLAGS := install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := -m pip $(PIP_FLAGS)

# A second environment with MPICH, for the tests: its own mpi4py, everything else from $(VENV) (named last: pip would
# find mpi4py there already). Where there is no wheel of MPICH, those tests are skipped.
define MPICH
{ $(BIN)/python -m venv --without-pip --clear $(VENV)/mpich && \
  $(BIN)/python -m pip --python $(VENV)/mpich/bin/python $(PIP_FLAGS) 'mpich>=5,<6' 'mpi4py>=4,<5' && \
  where='import sysconfig; print(sysconfig.get_paths()["purelib"])' && \
  main=$$($(BIN)/python -c "$$where") && mine=$$($(VENV)/mpich/bin/python -c "$$where") && \
  echo "import site; site.addsitedir('$$main')" > "$$mine/all_else.pth"; \
} || { rm -rf $(VENV)/mpich; echo "  no MPICH to be had: its tests will be skipped"; }
endef

# It ends with code 2 where its worker processes are not up within three seconds: on a machine that is so busy, once more
# without them.
MYPY = $(BIN)/mypy $(1) || { [ $$? -eq 2 ] && $(BIN)/mypy --num-workers 0 $(1); }
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-kernels fuzz test-all check format format-check lint types docs gpu-kit bench man dist clean FORCE

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.ready  ## plan, verify and run an allreduce, start to end
	@ANTIPHON=$(BIN)/antiphon sh examples/demo.sh

test: $(VENV)/.ready-dev  ## run the tests, without the slow ones
	@echo "== tests"
	@$(PYTEST) $(ARGS)

fuzz: $(VENV)/.ready-dev  ## hold everything against independent judges, some minutes; ARGS=--long for hours
	@$(BIN)/python fuzz/run_all.py $(ARGS)

# OpenBLAS chooses its kernel by the processor, unless this variable names one; the kernels round differently.
KERNELS := Haswell Prescott SkylakeX
NUMERIC_TESTS := tests/test_fit.py tests/test_fit_loggp.py tests/test_loggp_radix.py tests/test_bounds_lp.py

test-kernels: $(VENV)/.ready-dev  ## run the numeric tests with several kernels of OpenBLAS
	@case "$$(uname -m)" in x86_64|amd64) ;; *) echo "  skipped on $$(uname -m): the kernels are for x86-64"; exit 0;; esac; \
	for kernel in $(KERNELS); do \
	    if [ $$kernel = SkylakeX ] && ! grep -qm 1 avx512f /proc/cpuinfo 2>/dev/null; then \
	        echo "== kernel $$kernel: skipped, this processor has no AVX-512"; continue; \
	    fi; \
	    echo "== numeric tests, kernel $$kernel"; \
	    OPENBLAS_CORETYPE=$$kernel OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q $(NUMERIC_TESTS) || exit 1; \
	done

test-all: $(VENV)/.ready-all  ## run all tests, hours of a processor; goes on where it was ended (ARGS=--list: what is left)
	@echo "== all tests"
	@$(BIN)/python tests/whole.py $(PYTEST) -- $(ARGS)

check: format-check lint types test  ## all that a change must pass: format, lint, types, tests

format: $(VENV)/.ready-dev  ## reformat the code
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format .

format-check: $(VENV)/.ready-dev  ## tell whether the code is formatted
	@echo "== format"
	@$(BIN)/ruff format --check .

lint: $(VENV)/.ready-dev  ## look for mistakes with ruff
	@echo "== lint"
	@$(BIN)/ruff check .

types: $(VENV)/.ready-dev  ## check types with mypy
	@echo "== types"
	@$(call MYPY,)
	@$(call MYPY,tests --no-warn-unused-ignores $(LOOSER:%=--disable-error-code %))

# Material announces its successor at every build, unless this variable is set.
docs: $(VENV)/.ready-dev  ## build the site into build/site; every link and anchor is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site"

gpu-kit: $(VENV)/.ready  ## with nvcc: build/gpu-kit, a folder that proves and times the GPU kernel on another machine
	@$(BIN)/python bench/gpu_kit.py build/gpu-kit

bench: $(VENV)/.ready  ## run every bench/bench_*.py
	@set -eu; \
	for file in bench/bench_*.py; do \
	    if [ ! -e "$$file" ]; then echo "no bench/bench_*.py to run"; break; fi; \
	    echo "== $$file"; \
	    $(BIN)/python "$$file"; \
	done

man: $(VENV)/.ready  ## write manual pages of all commands into build/man
	@$(BIN)/python release/manpages.py build/man

# More Pythons in which to try the wheels: make dist PYTHONS="python3.12 python3.13"
PYTHONS ?=

dist: $(VENV)/.ready  ## build sdist and wheels into dist/, install each in bare environments and try it there
	@sh release/dist.sh $(BIN)/python $(PYTHONS)

clean:  ## remove all that was built, build/venv too
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find bench examples fuzz release src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- set-up ----

# Unless PYTHON was given, an older python3 gives way to a newer python3.N beside it.
CANDIDATES := $(PYTHON)
ifeq ($(origin PYTHON),file)
CANDIDATES += python3.14 python3.13 python3.12 python3.11
endif

# An environment that was made elsewhere (the tree was moved or copied), whose Python is gone, or whose making was
# interrupted, is made anew: .created holds the folder of the tree, and nothing until it is complete.
ifneq ($(wildcard $(VENV)/.created),)
ifneq ($(shell $(BIN)/python -c '' 2>/dev/null && cat $(VENV)/.created),$(CURDIR))
$(VENV)/.created: FORCE
endif
endif

# Debian's python3 cannot make environments with pip in them unless python3-venv is installed; virtualenv can.
$(VENV)/.created:
	@set -eu; \
	if [ -e $(VENV) ] && [ ! -e $@ ]; then \
	    echo "$(VENV) was not made by this Makefile and stays as it is; take another folder: make VENV=FOLDER" >&2; \
	    exit 1; \
	fi; \
	python=; \
	for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    found=$$("$(PYTHON)" --version 2>&1) || found="not there"; \
	    echo "Antiphon needs Python 3.11 or newer: $(PYTHON) is $$found;" \
	        "name a newer one, as in: make PYTHON=python3.11" >&2; \
	    exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version)"; \
	start_anew() { rm -rf $(VENV); mkdir -p $(VENV); : > $@; }; \
	start_anew; \
	if ! "$$python" -m venv $(VENV) >/dev/null 2>&1; then \
	    echo "  it cannot make one by itself (no ensurepip): getting virtualenv for it"; \
	    start_anew; \
	    rm -rf $(BOOTSTRAP); \
	    if ! "$$python" -m pip --version >/dev/null 2>&1; then \
	        echo "Antiphon needs pip or venv for $$python: install python3-pip or python3-venv" >&2; \
	        exit 1; \
	    fi; \
	    "$$python" $(PIP_INSTALL) --target $(BOOTSTRAP) virtualenv; \
	    PYTHONPATH=$(BOOTSTRAP) "$$python" -m virtualenv --quiet $(VENV); \
	    rm -rf $(BOOTSTRAP); \
	fi; \
	echo "$(CURDIR)" > $@

$(VENV)/.ready: pyproject.toml $(VENV)/.created
	@echo "installing antiphon and its dependencies into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml $(VENV)/.created
	@echo "installing antiphon, its dependencies and the development tools into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[dev]'
	@$(MPICH)
	@touch $(VENV)/.ready $@

$(VENV)/.ready-all: $(VENV)/.ready-dev
	@echo "installing Ray and PyArrow, which only slow tests need, into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[ray,parquet]' || echo "  not to be had: their tests will be skipped"
	@touch $@
