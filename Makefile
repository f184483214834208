# Everything runs in .venv, which `make setup` makes. Needs Python 3.11 or newer with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Of PyTorch the CPU build, for the adapter's tests: the default one brings gigabytes for GPUs.
TORCH ?= torch==2.13.0+cpu

.PHONY: setup demo test test-full bench lint docs dist clean

# Compiled programs are kept between test runs: compiling is most of their time. Benchmarks compile anew, and take the
# accelerator where there is one.
demo test test-full: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/jax
demo test test-full: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0.1
demo test test-full: export JAX_PLATFORMS ?= cpu
# Every run of the long tests traces its program again and compares it with the compiled one.
test-full: export ROOKERY_VERIFY_PROGRAMS := 1

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) 'torchax>=0.0.14.dev20261026' \
	  || echo "without the CPU build of PyTorch ($(TORCH)): the tests of its adapter are skipped"
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py

# Three at a time on two cores: tests of federations wait for other processes most of their time.
test: setup
	XLA_FLAGS="$$($(BIN)/python tests/xla_flags.py)" $(BIN)/python -m pytest -m "not full" -n 3 --dist loadfile --no-loadscope-reorder

test-full: setup
	XLA_FLAGS="$$($(BIN)/python tests/xla_flags.py)" $(BIN)/python -m pytest -n 2 --dist loadfile

# The last one has environments of its own, which `python -m benchmarks.peers --setup` makes; without them it is ours alone.
bench: setup
	$(BIN)/python -m benchmarks.bench
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.convolution
	$(BIN)/python -m benchmarks.population
	$(BIN)/python -m benchmarks.mesh
	$(BIN)/python -m benchmarks.peers

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

dist: setup
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist .cache .pytest_cache .ruff_cache
