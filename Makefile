.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
ADMIN_PORT ?= 8001
DATA ?= .batchyard
MODELS ?=
FILES ?=

.PHONY: help venv models up demo services test check bench bench-check

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

venv: $(VENV)/.installed ## only the environment (.venv)

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e '.[server,onnxruntime,cluster]' --group dev
	@touch $@

models: venv ## the generated test and demo models
	$(BIN)/python -m tests.models.make

up: venv models ## local stack on 127.0.0.1:$(PORT) until Ctrl-C
	exec $(BIN)/batchyard up --port $(PORT) --admin-port $(ADMIN_PORT) --data $(DATA) --models $(or $(MODELS),tests/models)

demo: venv ## a real model over real files, checked answer by answer
	$(BIN)/python -m tests.demo $(if $(FILES),--files "$(FILES)")

services: venv ## Postgres, Redis, Kafka and S3 on free loopback ports until Ctrl-C
	exec $(BIN)/python -m tests.services --data $(DATA)/services

test: venv models ## every test there is; installs the services that tests start
	$(BIN)/python -m tests.services.install
	$(BIN)/python -m pytest

check: venv ## ruff, mypy, import contracts, module length
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.module_length

bench: venv models ## the figures of docs/speed.md, side by side
	$(BIN)/python -m tests.bench

bench-check: venv models ## exit 1 on a missed ratio
	$(BIN)/python -m tests.bench --check
