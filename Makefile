SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PYTHON ?= python3

DOCKER    ?= docker
IMAGE     := agentctl:dev
IMAGE_TAR := dist/image.tar
REVISION  := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
OVERLAY   ?= single

# Which Kubernetes `make integration` uses, and the command that brings it the image's tar.
CLUSTER ?=
ifeq ($(CLUSTER),node)
export KUBECONFIG := $(or $(CLUSTER_RUN),/tmp/agentctl-cluster)/admin.kubeconfig
IMAGE_LOAD := python -m integration.cluster load
else ifeq ($(CLUSTER),kind)
export KUBECONFIG ?= $(HOME)/.kube/config
IMAGE_LOAD := kind load image-archive
else ifeq ($(CLUSTER),kubeconfig)
IMAGE_LOAD ?= $(error IMAGE_LOAD is not set: a command that brings the tar it is given to the cluster)
endif

PROTOS   := $(shell find proto -name '*.proto')
SERVICES := $(shell grep -rl --include='*.proto' '^service ' proto)
PROTOC   := python -m grpc_tools.protoc -I proto

.PHONY: help setup proto crds lint test soak integration integration-keda hostile demo load image cluster keda cluster-down deploy ci clean
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

crds: .venv ## Regenerate k8s/base/crds from libs/resources
	python -m libs.resources

lint: .venv ## Style, types, import rules, protos, CRDs
	buf lint && buf format -d --exit-code
	python -m libs.resources --check
	ruff check . && ruff format --check .
	mypy
	lint-imports

test: .venv ## Unit and component tests, PostgreSQL included
	pytest -q -n 2

soak: .venv ## The random tests of two replicas on PostgreSQL, for a while
	pytest -q -m soak services

integration: .venv ## Real processes on loopback, killed and attacked from outside (CLUSTER=node|kind|kubeconfig: on that Kubernetes)
ifeq ($(CLUSTER),)
	pytest -q integration
	pytest -q -m processes loadgen services
else
	$(MAKE) image
	$(if $(filter node,$(CLUSTER)),$(MAKE) cluster)
	$(IMAGE_LOAD) $(IMAGE_TAR)
	kubectl create namespace agentctl-system --dry-run=client -o yaml | kubectl apply -f -
	kubectl apply -k k8s/base/crds
	AGENTCTL_TEST_KUBECONFIG="$$KUBECONFIG" AGENTCTL_TEST_IMAGE=$(IMAGE) pytest -q -m cluster libs services
	AGENTCTL_TEST_KUBECONFIG="$$KUBECONFIG" pytest -q -m cluster integration/cluster
endif

integration-keda: keda ## Fleets scaled by a real KEDA there, in half an hour: `make cluster image` and an image loaded come first
	AGENTCTL_TEST_KUBECONFIG="$$KUBECONFIG" pytest -q -m cluster integration/cluster/test_keda*.py

hostile: .venv ## Floods and thousands of connections against both fronts, for minutes
	pytest -q -m hostile integration/fronts

demo: .venv ## Start everything here, summarise the example documents, kill an agent half-way
	python -m integration.demo

load: .venv ## Every bar of coordination: figure beside bar, in a quarter of an hour
	agentctl-loadgen bars

image: ## Build the image agentctl:dev, and $(IMAGE_TAR) for other machines
	$(DOCKER) build $(BUILD_ARGS) --build-arg REVISION=$(REVISION) -t $(IMAGE) .
	mkdir -p $(dir $(IMAGE_TAR)) && $(DOCKER) save -o $(IMAGE_TAR) $(IMAGE)

cluster: .venv ## Start a one-node Kubernetes here (Linux, root, Go; eight minutes of building, once)
	@kubeconfig=$$(python -m integration.cluster up) && echo "export KUBECONFIG=$$kubeconfig"

keda: .venv ## Install KEDA there (built in about five minutes, once)
	python -m integration.cluster keda

cluster-down: .venv ## Stop it and remove its state
	python -m integration.cluster down

deploy: ## Install the overlay $(OVERLAY) where kubectl points
	kubectl apply -k k8s/overlays/$(OVERLAY)

ci: proto lint test integration ## What CI runs
	git diff --exit-code gen

clean: ## Remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
