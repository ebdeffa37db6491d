# `make help` says what there is. kernels/kernels.mk says what the library is made of and finds
# CUDA; tests/tests.mk builds the tests.
.DEFAULT_GOAL := help
.SUFFIXES .SECONDARY .SECONDEXPANSION: # keep objects that only a chain of pattern rules asks for
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash

VERSION := 0.1.0
REVISION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
FUZZ_CC ?= clang
# Of -ffast-math only what changes no result: it deletes NaN tests. No -march: it runs anywhere.
CFLAGS ?= -O3 -g -fno-math-errno -fno-trapping-math
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror
PACKAGES := libcjson libpcre2-8 libutf8proc zlib libzstd libxxhash
PACKAGE_FLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
C_FLAGS := -std=c11 -D_POSIX_C_SOURCE=200809L $(WARNINGS) -I. -fopenmp -MMD -MP $(PACKAGE_FLAGS)
# oneDNN has no pkg-config file in older releases.
LIBS := -Wl,--as-needed -ldnnl $(or $(shell pkg-config --libs $(PACKAGES) 2>/dev/null), \
  -lcjson -lpcre2-8 -lutf8proc -lz -lzstd -lxxhash) -ldl -lm

# Every flavour has its own folder: what users run; ASan and UBSan; the CPU backend in fp64, for
# gradient checks; clang's libFuzzer; a library that other programs load.
SANITIZERS := address,undefined -fno-sanitize-recover=all
build/release/%: FLAGS = $(CFLAGS)
build/asan/%: FLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=$(SANITIZERS)
build/double/%: FLAGS = -O2 -g -DREAL_IS_DOUBLE
build/fuzz/%: FLAGS = -O1 -g -Wno-pass-failed -fsanitize=fuzzer-no-link,$(SANITIZERS)
build/shared/%: FLAGS = $(CFLAGS) -fPIC
build/fuzz/%: override CC = $(FUZZ_CC)

# What is special to one target stands in its EXTRA_FLAGS and EXTRA_LIBS, in the two other files.
HOST = $(CC) $(C_FLAGS) $(FLAGS) $(EXTRA_FLAGS) -c
LINK = $(CC) -fopenmp $(FLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(EXTRA_LIBS) $(LIBS)
ARCHIVE = rm -f $@ && ar rcs $@ $(filter %.o,$^)

# Beside its headers, a file's .d names the command that made it: the value of variable $1. Where
# that is another now, the file is made again.
changed = $(if $(subst x$(strip $($1)),,x$(made-$@)),FORCE)
keep = @echo 'made-$@ := $(subst ','\'',$(strip $($1)))' >> $(basename $@).d
define compile
mkdir -p $(@D) && $($1) $< -o $@
$(keep)
endef
FLAVOURS := release asan double fuzz shared
$(foreach f,$(FLAVOURS),$(eval build/$f/%.o: %.c $$$$(call changed,HOST); $$(call compile,HOST)))
# Files that are in objects (base/embed.h).
$(FLAVOURS:%=build/%/data/prepare/parquet.o): scripts/parquet_to_jsonl.py
$(FLAVOURS:%=build/%/model/run/page.o): model/run/page.html

include kernels/kernels.mk tests/tests.mk

# ---- What people call
.PHONY: all test check test-all test-gpu bench kernels program test-program sanitize asan fuzz \
  night dist format clean help FORCE quick-programs test-programs asan-programs fuzz-programs \
  gpu-programs
all: train prepare ## build ./train and ./prepare
train prepare: %: build/release/%
	ln -sfn $< $@

test: quick-programs ## build and run the tests that take two minutes and need no GPU
	TEST_TIER=1 scripts/run_tests.sh --together $(QUICK_TESTS) $(call scripts_of,$(QUICK_SCRIPTS))
check: ## build and run the quick tests that touch a file: make check FILE=data/loader.c
	@scripts/check.sh '$(FILE)'
test-all: FUZZ_SECONDS ?= 10
test-all: test-programs fuzz-programs ## all that need no GPU: fuzzers, sanitizers, every fault too
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/run_tests.sh --together $(FUZZERS) $(QUICK_TESTS) \
	  $(ASAN_TESTS) $(call scripts_of,$(SCRIPT_TESTS))

ifdef HAVE_CUDA
test-gpu: gpu-programs ## build and run the tests that need a GPU
	JOBS=$${JOBS:-8} OMP_NUM_THREADS=$${OMP_NUM_THREADS:-4} TEST_SECONDS=$${TEST_SECONDS:-600} \
	  scripts/run_tests.sh --together $(GPU_TOGETHER) --alone $(GPU_ALONE)
# Few layers of a width start fast; more change no operation and no layer.
bench: train $(BENCH_FUSED) ## time kernels, layers and steps on a GPU
	$(BENCH_FUSED) all
	set -e; for width in 1b:8 7b:4 70b:2; do ./train --bench configs/$${width%:*}-width.json \
	  model.num_hidden_layers=$${width#*:}; done
kernels: train ## list the fused kernels: tile, registers, stack, spills
	@scripts/compile_fused.sh --show $(patsubst %.cu,build/release/%.ptxas,$(FUSED_CU))
program: $(PROGRAM:.cu=.o) ## compile the file of one fused program: make program NAME=residual
	@$(if $(PROGRAM),scripts/compile_fused.sh --show $(PROGRAM:.cu=.ptxas),echo 'make: there is no \
	  fused program "$(NAME)"; NAME is one of: $(PROGRAM_NAMES)' >&2; exit 1)
test-program: $(firstword $(EMULATED_TESTS)) ## test one fused program on the CPU: NAME=residual
	$< $(NAME) $(SHAPE)
sanitize: all $(PLANTED_FAULTS) ## memcheck, racecheck, initcheck, synccheck of a small model
	scripts/run_tests.sh --alone tests/gpu/sanitize.sh
else
test-gpu bench kernels program test-program sanitize:
	@echo 'make: no CUDA toolkit (nvcc, cuBLASLt) was found; install one, or name its folder:' \
	  'make $@ CUDA_HOME=...' >&2; exit 1
endif

asan: asan-programs ## programs and scripts under ASan and UBSan
	TRAIN=build/asan/train PREPARE=build/asan/prepare \
	  scripts/run_tests.sh --together $(ASAN_TESTS) $(call scripts_of,$(SCRIPT_TESTS))
fuzz: fuzz-programs ## run the libFuzzer targets, FUZZ_SECONDS (60) each
	scripts/run_tests.sh --together $(FUZZERS)
dist: ## one archive that runs without packages: programs for every GPU, libraries, this tree
	$(MAKE) -s $(if $(HAVE_CUDA),CUDA_ARCHS='$(ALL_ARCHS)') $(DIST)
	scripts/dist.sh build/coda-c-$(VERSION)-linux-$(shell uname -m)$(if $(HAVE_CUDA),,-cpu).tar.gz
night: all fuzz-programs $(filter %_faults,$(UNIT_TESTS)) ## attacks for NIGHT_MINUTES (480)
	FUZZERS='$(FUZZERS)' tests/night/run.sh
format: ## clang-format over the tree
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format -i
clean: ## remove everything that was built
	rm -rf build train prepare

help: ## this text
	@echo 'coda.c $(VERSION)'; echo
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 21
	@echo; echo '  ./scripts/quickstart.sh    from nothing to a model that writes'
	@echo '  ./scripts/test.sh          install, build, test; --all: slow tests too'

-include $(shell find build -name '*.d' 2>/dev/null)
