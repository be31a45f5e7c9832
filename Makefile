# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Hundreds of processes of ours start in the tests: compiled once, and not by each of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-pds check images bench-peers lock format clean

demo: $(READY)
	$(BIN)/skylease simulate catan --agents 4 --seed 7

# The unit tests share nothing and run on every core. Those with machines of their own run file by file, four at once
# since they wait a lot; those that start Ray after them, two files at once. Who is first: tests/conftest.py.
FILES := --dist loadfile --no-loadscope-reorder
test: $(READY)
	$(BIN)/pytest tests/unit -n logical $(PYTEST_FLAGS)
	$(BIN)/pytest tests/contract tests/integration tests/chaos -m "not ray" -n 4 $(FILES) $(PYTEST_FLAGS)
	$(BIN)/pytest tests/integration tests/chaos -m ray -n 2 $(FILES) $(PYTEST_FLAGS)

# Against a real @atproto/pds from npm, in .cache (250 MB; needs node, npm and a C++ compiler).
PDS := .cache/pds
test-pds: $(READY) $(PDS)/.ready
	REAL_PDS_DIR=$(CURDIR)/$(PDS) $(BIN)/pytest tests/integration/firehose/test_real_pds_live.py --timeout=900 $(PYTEST_FLAGS)

$(PDS)/.ready:
	@command -v npm >/dev/null || { echo "make test-pds needs node 20 and npm"; exit 2; }
	mkdir -p $(PDS) && echo '{"private": true}' > $(PDS)/package.json
	cd $(PDS) && npm install --no-audit --no-fund --ignore-scripts \
	    @atproto/pds@0.4.217 @did-plc/lib @did-plc/server@0.0.1 && npm rebuild better-sqlite3
	cd $(PDS) && node -e "require('better-sqlite3')(':memory:')"
	@touch $@

# What the docker tier starts from. BASE=image: another Debian with Python to build on; OFFLINE=1: make one from the
# package mirror of apt (as root), where no image registry answers.
images: $(READY)
	$(BIN)/skylease images build $(if $(BASE),--base $(BASE)) $(if $(OFFLINE),--offline)

# What `skylease bench` compares us with, in a venv of its own; without it those peers are left out.
bench-peers: $(READY)
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	$(BIN)/python -m benchmarks.peers.image

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases tests benchmarks
	@echo "largest files:" && git ls-files '*.py' | xargs wc -l | sort -rn | sed -n '2,6p'

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Everything that is installed, at one version, with hashes; run after changing pyproject.toml.
lock: $(READY)
	$(BIN)/uv pip compile --quiet --no-emit-index-url --no-annotate --no-header --generate-hashes --universal \
	    --extra dev --extra oracle -o requirements.lock pyproject.toml

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "skylease needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.11 …"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	    { echo "python has no venv module: install it (Debian: apt-get install python3-venv)"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) .venv-peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
