# The two commands a newcomer needs: `make demo` and `make test`. Each makes .venv by itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
KAFKA  := tools/kafka/libs/.fetched

.PHONY: demo test check lint types contracts fast serial races kafka clean help

help:
	@sed -n 's/^#: //p' $(MAKEFILE_LIST)

# Made anew only when the project's own list of dependencies changed, so a second run installs nothing.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

#: make demo       start everything, roll and kill replicas under load, audit every event
demo: $(STAMP)
	@$(BIN)/quiesce demo $(DEMO_FLAGS)

#: make test       lint, types, import contracts and all tests on real servers
test: check fast serial

#: make check      lint, types and import contracts only
check: lint types contracts

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports --no-cache

fast: $(STAMP) $(KAFKA)
	@$(BIN)/pytest -n 4 --dist loadgroup -m "not serial and not races" --durations=20 $(TEST_FLAGS)

serial: $(STAMP) $(KAFKA)
	@$(BIN)/pytest -m "serial and not races" --durations=20 $(TEST_FLAGS)

#: make races      10,000 schedules on the core and 500 start and stop races with real processes (minutes)
races: $(STAMP)
	@$(BIN)/pytest -n 2 -m races tests/races $(TEST_FLAGS)

# Apache Kafka comes as jars through Maven. Without Java and Maven the tests say what they could not run.
kafka: $(KAFKA)
$(KAFKA): tools/kafka/pom.xml | $(STAMP)
	@if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then \
	   echo "Java 17 and Maven are not here: the tests on Apache Kafka will not run (install both to run them)"; \
	 elif echo "fetching Apache Kafka's jars ..." && rm -rf tools/kafka/libs && \
	   mvn -q -B -Dstyle.color=never -f tools/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory=libs; then \
	   echo "making Apache Kafka start faster ..."; \
	   $(BIN)/python -m quiesce.testing.kafka_archive || echo "... it will start, but slowly"; \
	   touch $@; \
	 else echo "Apache Kafka's jars could not be fetched: the tests on it will not run"; fi

clean:
	rm -rf $(VENV) tools/kafka/libs build dist
