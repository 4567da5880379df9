# Every target sets itself up on a fresh machine: Python 3.11 or newer and make are enough.
VENV ?= .venv
PYTHON ?= python3
PHOTO ?= datasets/sample/tablet.jpg
OUT ?= out
TESTS ?= -n auto --dist loadfile
export PYTHONSAFEPATH = 1
BIN = $(VENV)/bin

.PHONY: read test check types train-small notebooks clean

read: $(VENV)/.installed ## transliterate PHOTO and write its report to OUT
	$(BIN)/dubsar read "$(PHOTO)" -o "$(OUT)" --overwrite

test: $(VENV)/.installed-dev ## on all cores, a file of tests on each
	$(BIN)/pytest $(TESTS)

check: $(VENV)/.installed-dev types ## what must pass before a commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest $(TESTS)

types: $(VENV)/.installed-dev
	$(BIN)/mypy

train-small: $(VENV)/.installed ## train all stages on two CPU cores, and ship what comes of it
	for stage in transliterate detect classify; do $(BIN)/dubsar train $$stage --overwrite && $(BIN)/dubsar ship $$stage || exit; done

notebooks: $(VENV)/.installed-dev ## generate the .ipynb from notebooks/src, outputs stripped
	$(BIN)/python notebooks/generate.py

clean: ## what is made again in minutes; runs/ holds hours of training and stays
	rm -rf out build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev]'
	touch $@ $(VENV)/.installed
