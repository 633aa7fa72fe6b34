# make demo   set up, then tune and build a real model on this machine, printing before and after
# make test   set up, then run all tests
# make soak   long runs of the farm against models and faults, printing their figures
# make faults the farm under faults for FAULT_S seconds (60), with a checked history
# make models random models beside onnxruntime for MODELS_S seconds (600)
# make docs   the documents, into build/docs/index.html
# make pictures  the dashboard's pictures in docs/, of a model that it tunes
# make lint types wheel   the further checks of .ci/run
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.dev-installed
DEMO := $(VENV)/.demo-installed
BENCH := $(VENV)/.bench-installed
SITE := build/site
FAULT_S ?= 60
MODELS_S ?= 600

.PHONY: demo test soak faults models lint types wheel docs pictures proto bench-env conformance clean

# What the tests need is twice as much: where it is installed, it will do.
demo: $(if $(wildcard $(DEV)),$(DEV),$(DEMO))
	$(BIN)/python bench/demo.py

# Those that compute share the machine, those of processes mostly wait and go three by three; those
# that measure have it alone. A module's tests go together, and the longest modules first: one that
# began last would keep a single core busy.
COMPUTING := system/test_conformance.py system/test_networks.py random_models db compiler proto
WAITING := dashboard $(addprefix system/, test_tune_survives_kills.py test_plugins.py \
	test_job_survives_kills.py test_gpu_tuning.py test_idle_devices.py test_secrets.py \
	test_gpu_bench.py) docs tunefarm tuner tracker worker/cuda deploy
BY_MODULE := --dist loadscope --no-loadscope-reorder
# The processes that tests start, by the hundred, load what is compiled here once.
test: export PYTHONDONTWRITEBYTECODE =
test: $(DEV)
	$(BIN)/python -m compileall -q compiler dashboard db proto tracker tunefarm tuner worker
	$(BIN)/python -m pytest -n auto --maxprocesses 4 $(BY_MODULE) $(COMPUTING:%=tests/%)
	$(BIN)/python -m pytest -n 3 $(BY_MODULE) $(WAITING:%=tests/%)
	$(BIN)/python -m pytest $(COMPUTING:%=--ignore tests/%) $(WAITING:%=--ignore tests/%)

soak: $(DEV)
	$(BIN)/python -m pytest -m soak -s

faults: $(DEV)
	TUNEFARM_FAULT_S=$(FAULT_S) $(BIN)/python -m pytest -m soak -s tests/system/test_faults.py

models: $(DEV)
	TUNEFARM_MODELS_S=$(MODELS_S) $(BIN)/python -m pytest -m soak -s tests/random_models

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Types and the wheel's contents are checked on what a user gets: the wheel, installed.
wheel: $(DEV)
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	$(BIN)/python -m pip install --quiet --no-deps --target $(SITE) dist/*.whl

types: wheel
	cd $(SITE) && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		--python-executable ../../$(BIN)/python -p tunefarm

# Links, anchors and pages that are not in the navigation are errors.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(DEV)
	$(BIN)/python bench/dashboard_pictures.py

proto: $(DEV)
	$(BIN)/python -m tunefarm.proto.generate

conformance: $(DEV)
	$(BIN)/python bench/conformance.py

bench-env: $(BENCH)

# pip is what making a venv ends with: one that was broken off is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
		|| { echo "tunefarm needs Python 3.11 or newer; set PYTHON=python3.11 or install it"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
		|| { echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)

define installed
$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=77" wheel
PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e ".[$(1)]"
@touch $@
endef

$(DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing tunefarm and onnxruntime into $(VENV): this once it takes a minute or two"
	$(call installed,demo)

$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing tunefarm and all that its tests need into $(VENV), 3 GB: this once it takes a few minutes"
	$(call installed,dev)

$(BENCH): $(DEV)
	$(call installed,bench)

clean:
	rm -rf $(VENV) build dist
