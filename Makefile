# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check lock format clean

demo: $(READY)
	$(BIN)/skylease simulate catan --agents 4 --seed 7

test: $(READY)
	$(BIN)/pytest $(PYTEST_FLAGS)

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
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
