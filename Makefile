# The whole manual: make run | test | check | bench | eval | install | clean
PYTHON ?= python3.11
PORT ?= 7861
BIN := .venv/bin
STAMP := .venv/installed
export PYTHONNOUSERSITE := 1
export PIP_NO_INPUT := 1
# what is compiled once serves every process that the tests start
unexport PYTHONDONTWRITEBYTECODE
# threads come from pools of our own; libraries that add theirs only get in each other's way
export OMP_NUM_THREADS := 1

comma := ,
PG_TESTS ?= tests/db tests/api tests/graph tests/contract/test_stores_service.py tests/test_invariants.py \
	tests/test_crashes.py tests/test_faults.py tests/test_cli.py tests/ingest/test_pipeline.py

.PHONY: run install test test-pg check format bench bench-graph bench-graphrag bench-stores stores-test eval clean

run: install  ## start the service with the sample knowledge base on http://127.0.0.1:7861
	$(BIN)/zhiku serve --samples --port $(PORT)

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || python3 -m venv .venv
	$(BIN)/python -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $(STAMP)

test: install  ## the whole test suite
	$(BIN)/python -m pytest -q

test-pg: install  ## what touches SQL, on PostgreSQL
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,pg-test]'
	ZHIKU_TEST_DATABASE=postgresql ZHIKU_TEST_STORES=pg $(BIN)/python -m pytest -q $(PG_TESTS)

check: install  ## lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks

bench-graph: install  ## what graphs cost: make bench-graph LLM=http://…/v1 SETS="corpus=questions.json …"
	$(BIN)/python -m benchmarks.graph --llm $(LLM) $(SETS)

bench-graphrag: install  ## the same with reports of communities, by language model and without
	$(BIN)/python -m benchmarks.graph --llm $(LLM) --reports llm $(SETS)
	$(BIN)/python -m benchmarks.graph --llm $(LLM) --extractor nlp --reports nlp --no-waiting $(SETS)

bench-stores: install stores-test  ## the table of docs/stores.md: make bench-stores STORES="pg milvus" SIZES=10000
	$(BIN)/python -m benchmarks.stores --sizes $(or $(SIZES),10000$(comma)100000) $(STORES)

stores-test: install  ## drivers of all vector stores, and the servers that the tests start
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,stores-test]'

eval: install  ## quality on BEIR-like folders: make eval SETS="path/to/set …"
	$(BIN)/zhiku eval $(SETS)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
