# Front door. Every target installs what it needs first and does nothing twice. The work is in scripts/.
#   make demo          a model trains on while its workers are killed, added and removed
#   make test          every test, C++ and Python
#   make check         format, lint, types, include directions, limits
#   make wheel         dist/troupe-*.whl for any Linux that is not older, tried in an empty environment
#   make reference     build/reference: the API of Python and C++ as HTML
#   make chaos         a training under random faults: make chaos SEED=1 MINUTES=2
#   make bench         all benchmarks; make bench-NAME ARGS="..." runs one
#   make bench-ray     actors and tasks beside Ray's and Monarch's, which it installs into .third_party
#   make horovod       builds Horovod, which bench-training_recovery then runs beside Troupe
#   PRESET=dev make test    another preset of CMakePresets.json (dev: sanitizers)
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PRESET ?= release
SEED ?= 1
MINUTES ?= 2

.PHONY: help install-deps build demo test chaos wheel reference check format horovod bench bench-ray clean distclean

help:
	@sed -n 's/^#   //p' Makefile

install-deps:
	@scripts/install_debian.sh
	@scripts/setup_venv.sh
	@scripts/fetch_cuda_headers.sh

build: install-deps
	@scripts/build.sh

# What the demo starts, not the tests and benchmarks.
demo: install-deps
	@scripts/build.sh _core troupe_head troupe_node troupe_local troupe_worker troupe_guard
	@scripts/run_python.sh examples/digits.py

test: build
	@scripts/test.sh

chaos: build
	@scripts/run_python.sh tests/chaos/run.py --seed $(SEED) --minutes $(MINUTES)

wheel: install-deps
	@scripts/wheel.sh

reference: build
	@scripts/reference.sh

check: build
	@scripts/check.sh

format: install-deps
	@scripts/format.sh

horovod: install-deps
	@scripts/build_horovod.sh

bench: build
	@scripts/bench.sh

bench-ray: build
	@scripts/build_ray.sh
	@scripts/build_monarch.sh
	@scripts/bench.sh ray

bench-%: build
	@scripts/bench.sh $* $(ARGS)

clean:
	rm -rf build

distclean: clean
	rm -rf .venv .third_party dist
