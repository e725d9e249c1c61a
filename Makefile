SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PYTHON ?= python3

PROTOS   := $(shell find proto -name '*.proto')
SERVICES := $(shell grep -rl --include='*.proto' '^service ' proto)
PROTOC   := python -m grpc_tools.protoc -I proto

.PHONY: help setup proto lint test soak integration hostile demo load ci clean
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  %-12s %s\n", $$1, $$2}'

setup: .venv ## Make .venv with everything the other targets need (they do it by themselves)
.venv: pyproject.toml constraints.txt
	@echo 'Setting up .venv (about a minute, once)'
	$(PYTHON) -m venv .venv
	pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch .venv

proto: .venv ## Regenerate gen/ from proto/
	rm -rf gen && mkdir gen
	$(PROTOC) --python_out=gen --mypy_out=quiet:gen $(PROTOS)
	$(PROTOC) --grpc_python_out=gen --mypy_grpc_out=quiet:gen $(SERVICES)

lint: .venv ## Style, types, import rules, protos
	buf lint && buf format -d --exit-code
	ruff check . && ruff format --check .
	mypy
	lint-imports

test: .venv ## Unit and component tests, PostgreSQL included
	pytest -q -n 2

soak: .venv ## The random tests of two replicas on PostgreSQL, for a while
	pytest -q -m soak services

integration: .venv ## Real processes on loopback, killed and attacked from outside
	pytest -q integration

hostile: .venv ## Floods and thousands of connections against both fronts, for minutes
	pytest -q -m hostile integration/fronts

demo: .venv ## Start everything here, summarise the example documents, kill an agent half-way
	python -m integration.demo

load: .venv ## Every bar of coordination: figure beside bar, in a quarter of an hour
	agentctl-loadgen bars

ci: proto lint test integration ## What CI runs
	git diff --exit-code gen

clean: ## Remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
