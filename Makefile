# Everything here works on a fresh machine with Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python

.PHONY: setup system test demo lint matrix bench docs ledger clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml .ci/setup
	@sh .ci/setup "$(PYTHON)" "$(VENV)"
	@touch $@

# Server binaries of the distribution and PgBouncer: installed when we are root, named when we are not.
system:
	@sh .ci/system

# Every lane that exists: the embedded default, then the live tests against a server named by PGSHARE_DSN.
test: system setup
	$(PY) .ci/lanes.py

# The main job as a user has it: no package of the distribution, the wheel brings the server.
demo: setup
	$(PY) .ci/demo.py

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The default lane on every Python that is here: 3.11, 3.12, 3.13, and 3.14 where it is.
matrix: system
	sh .ci/matrix

bench: system setup
	$(PY) -m benchmarks

# Every row of the ledger: proved, part, out or open.
ledger: setup
	$(PY) -m pytest -q -s -p no:randomly -k listed tests/test_ledger.py

# Write the generated tables into the pages.
docs: setup
	$(PY) tests/recipes.py

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
