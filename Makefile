# SPDX-License-Identifier: Apache-2.0

# Entry point for developers. Everything is installed in .venv/ and built in build/ of this checkout.
VENV := .venv/bin
CMAKE := $(VENV)/cmake
JOBS ?= $(shell nproc)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-rdma test-rdma-torch lint format docs doctor clean

# TORCH=2.11 runs a target in a copy of the checkout, out/torch-2.11, whose environment has that torch. Such a copy has a
# list of its files: in it, TORCH only tells tools/setup.sh what to install.
ifneq ($(and $(TORCH),$(if $(wildcard .copied_files),,main)),)
setup build demo test test-rdma test-rdma-torch doctor:
	@tools/in_torch.sh "$(TORCH)" $(MAKE) --no-print-directory $@
else

help: ## show this list
	@echo "Headway: collectives that let ranks run a bounded distance apart."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'The first run installs what is missing (torch: 4.7 GB, a few minutes); later runs start at once.'
	@echo 'Pass arguments through ARGS, for example: make demo ARGS="--ranks 2 --lag 0 2"'
	@echo 'TORCH chooses another torch, in an environment beside this one: make test TORCH=2.11'

setup: ## install what is missing (.venv/, and Debian packages where allowed)
	@tools/setup.sh

build: setup ## build the C++ library, the torch backend and the C++ tests
	@tools/build.sh $(JOBS)

demo: setup ## run DLRM inference on 4 processes; report in out/demo/report.html
	@tools/build.sh "$(JOBS)" headway_c10d
	@$(VENV)/headway demo $(ARGS)

test: build ## run every test; the last line is "N passed, N failed, N skipped"
	@$(VENV)/python tools/run_ctest.py build --progress $(ARGS)

test-rdma: build ## run the tests of RDMA in a guest that emulates a device (QEMU, about 4 minutes)
	@$(VENV)/python tools/rdma_guest/guest_suite.py $(ARGS)

test-rdma-torch: build ## the same for the process group and for DLRM inference (about 3 minutes)
	@$(VENV)/python tools/rdma_guest/guest_suite.py --torch $(ARGS)

lint: build ## clang-format, clang-tidy, ruff, mypy --strict, layer check, comments, sentences, SPDX lines
	@.ci/run --only lint $(ARGS)

format: setup ## rewrite the sources with clang-format and ruff
	@git ls-files '*.hpp' '*.cpp' '*.h' '*.cc' '*.cu' '*.cuh' | xargs $(VENV)/clang-format -i
	@$(VENV)/ruff format -q . && $(VENV)/ruff check -q --fix .

docs: ## build the documents as a site in out/docs/html
	@tools/setup.sh --docs
	@tools/build.sh "$(JOBS)" headway_c10d headway_embedding_python
	@$(VENV)/python tools/build_docs.py

doctor: build ## say what this host offers and what Headway uses of it
	@$(VENV)/headway doctor $(ARGS)

clean: ## remove build output (.venv/ stays)
	rm -rf build build-* out

endif
