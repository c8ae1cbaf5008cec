# Two commands do everything on a fresh machine with Python 3.11+ and a C++17 compiler:
#   make demo    sets up, trains LeNet on the packaged digits, leaves figures in out/demo
#   make test    sets up, runs the linters, the layer check and the tests
PYTHON ?= python3
VENV ?= .venv
SEED ?= 0
BIN := $(VENV)/bin
SOURCES := CMakeLists.txt pyproject.toml $(shell find csrc -name '*.h' -o -name '*.cpp')

.PHONY: demo test test-pure prove bench oracle core lint docs clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tools/requirements-dev.txt
	touch $@

# The compiled core is built in place, so that Python sources are used as they stand.
$(VENV)/.core: $(VENV)/.ready $(SOURCES)
	PYTHON=$(CURDIR)/$(BIN)/python tools/build_core.sh build/core
	$(BIN)/python tools/link_package.py
	touch $@

core: $(VENV)/.core

demo: core
	$(BIN)/mixflow train --network lenet --data digits --epochs 30 --batch-size 64 \
		--optimizer sgd --lr 0.05 --wd 0.001 --shift 2 --seed $(SEED) --out out/demo

test: core
	$(BIN)/ruff check .
	$(BIN)/python tools/check_layers.py
	$(BIN)/python -m pytest -q -m "not slow and not oracle"
	MIXFLOW_PURE=1 $(BIN)/python -m pytest -q -m "not slow and not oracle" tests/smoke tests/contract

prove: core
	MIXFLOW_FULL_COUNTS=1 MIXFLOW_TEST_COUNT=1000000 $(BIN)/python -m pytest -q -m "not oracle" --timeout 3600
	MIXFLOW_PURE=1 $(BIN)/python -m pytest -q -m "not slow and not oracle" tests/smoke tests/contract
	$(BIN)/python benchmarks/failures/run.py --moments 20
	PYTHON=$(PYTHON) tools/check_installs.sh

bench: core
	$(BIN)/python benchmarks/run.py

oracle: core
	$(BIN)/python tools/record_oracle.py

docs: core
	$(BIN)/python tools/make_stubs.py
	$(BIN)/python tools/update_tables.py
	$(BIN)/python tools/api_reference.py docs/api

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf build out $(VENV) src/mixflow/*.so
