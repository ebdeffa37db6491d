# `make help` says what there is. One pass, no recursive make; every flavour has its own folder under build/.
#   release  what users run            asan    AddressSanitizer + UndefinedBehaviorSanitizer
#   double   the CPU backend in fp64, for gradient checks        fuzz  clang's libFuzzer
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash

CC ?= cc
ifeq ($(origin CC),default)
CC := gcc
endif
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror
# No -ffast-math: it deletes NaN tests. No -march: the hot loops are OpenBLAS', and the binary runs anywhere.
CFLAGS ?= -O3 -g
BASE_CFLAGS := -std=c11 -D_POSIX_C_SOURCE=200809L $(WARNINGS) -I. -fopenmp -MMD -MP \
  $(shell pkg-config --cflags libcjson openblas 2>/dev/null)
LIBS := $(shell pkg-config --libs libcjson openblas 2>/dev/null || echo -lcjson -lopenblas) -ldl -lm

VERSION := 0.1.0
GIT_REVISION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

# ---- Sources: everything in the library folders but the two main programs.
LIBRARY := $(filter-out data/prepare.c,$(wildcard base/*.c data/*.c model/*.c model/*/*.c kernels/*.c kernels/cpu/*.c)) \
  $(addprefix kernels/,cuda/cudnn_api.c cuda/cudnn_graph.c cuda/attention_graph.c cuda/cupti_api.c cuda/library.c cuda/trace.c fused/tiles.c) # these need no CUDA to build
# The GPU backends where a CUDA toolkit is found (nvcc on the PATH, CUDA_HOME, or the usual places), and only in what
# users run: the other flavours, and machines without a toolkit, get a few functions that say so.
CUDA_HOME ?= $(firstword $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)) $(wildcard /usr/local/cuda /opt/cuda /usr/local/cuda-*))
NVCC ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA_INCLUDE := $(firstword $(dir $(wildcard $(CUDA_HOME)/include/cublasLt.h /usr/include/cublasLt.h)))
CUDA_LIB := $(firstword $(dir $(wildcard $(CUDA_HOME)/lib64/libcublasLt.so $(CUDA_HOME)/targets/x86_64-linux/lib/libcublasLt.so \
  /usr/lib/x86_64-linux-gnu/libcublasLt.so)))
NO_CUDA := kernels/no_cuda.c
LIBRARY := $(filter-out $(NO_CUDA),$(LIBRARY))
ifneq ($(and $(NVCC),$(CUDA_INCLUDE),$(CUDA_LIB)),)
HAVE_CUDA := yes
CUDA_C := $(filter-out $(LIBRARY),$(wildcard kernels/cuda/*.c kernels/unfused/*.c kernels/fused/*.c))
FUSED_CU := $(wildcard kernels/fused/*.cu kernels/fused/programs/*.cu)
CUDA_CU := $(wildcard kernels/cuda/*.cu kernels/unfused/*.cu) $(FUSED_CU)
# Programs that only tests and benchmarks launch.
TEST_PROGRAM_CU := $(wildcard tests/gpu/programs/*.cu tests/bench/programs/*.cu)
CUDA_LIBS := -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcublasLt -lcudart_static -lstdc++ -ldl -lrt -lpthread
endif
# For the GPU that is here, or for all that the backend serves: CUDA_ARCHS="80 90a" chooses.
GPU_HERE := $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -xE '([89]|1[0-9])\.[0-9]')))
CUDA_ARCHS ?= $(or $(subst 90,90a,$(GPU_HERE)),80 86 89 90a)
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -I. -Werror all-warnings -Xcompiler -Wall,-Wextra \
  $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a))
# The fused kernels are Hopper's alone, whatever else is built for. One that uses local memory (spilled registers, or a stack
# frame) fails the build with the compilers that they were written with; with another, which may deal registers out worse, it is only said.
FUSED_FLAGS := $(filter-out -gencode arch=%,$(NVCC_FLAGS)) -gencode arch=compute_90a,code=sm_90a -Xptxas -v
LOCAL_MEMORY_FAILS = $(NVCC) --version | grep -q 'release 13\.'
GPU_TESTS := $(basename $(notdir $(wildcard tests/gpu/test_*.c)))
GPU_BENCHES := $(basename $(notdir $(wildcard tests/bench/bench_*.c)))
TESTS := $(basename $(notdir $(wildcard tests/unit/test_*.c)))
FUZZERS := $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.c)))
GRADCHECKS := $(basename $(notdir $(wildcard tests/unit/gradcheck_*.c)))
SCRIPT_TESTS := $(sort $(wildcard tests/cli/test_*.sh))
TEST_SUPPORT := $(filter-out %/cupti_stub.c %/nvtx_recorder.c,$(wildcard tests/support/*.c))

# NVTX is headers alone: every flavour has the ranges of base/range.c where they are found.
EXTRA_range := $(addprefix -idirafter ,$(wildcard $(CUDA_HOME)/include))
HAVE_NVTX := $(shell $(CC) $(EXTRA_range) -E -include nvtx3/nvToolsExt.h -x c /dev/null >/dev/null 2>&1 && echo yes)
EXTRA_test_trace := $(EXTRA_range) # compares our records with CUPTI's header
EXTRA_test_attention_graph := $(EXTRA_range) # and our graphs with cuDNN's
# Calls that change files, for faults to be injected into; and those that need a GPU, for the CPU to stand in.
LDFLAGS_test_checkpoint_faults := $(foreach call,write open fsync rename renameat2 symlink mkdir unlink rmdir,-Wl,--wrap=$(call))
LDFLAGS_test_bench := $(foreach call,gpu_usable backend_create $(addprefix bench_gpu_,open close sample prepare product peak \
  copy fill mark ms forget),-Wl,--wrap=$(call))

objects = $(patsubst %.c,build/$(1)/%.o,$(2))
cuda_objects = $(if $(and $(HAVE_CUDA),$(filter release,$(1))),$(call objects,$(1),$(CUDA_C)) $(patsubst %.cu,build/$(1)/%.o,$(CUDA_CU)),\
  $(call objects,$(1),$(NO_CUDA)))
cuda_libs = $(if $(filter release,$(1)),$(CUDA_LIBS))

# ---- Flavours
FLAGS_release := $(CFLAGS)
FLAGS_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_double := -O2 -g -DREAL_IS_DOUBLE
FLAGS_fuzz := -O1 -g -Wno-pass-failed -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all

define flavour
build/$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	$(2) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$(EXTRA_$$(notdir $$*)) -c $$< -o $$@
build/$(1)/train: $$(call objects,$(1),train.c $$(LIBRARY)) $$(call cuda_objects,$(1))
	$(2) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$^ -o $$@ $$(LIBS) $$(call cuda_libs,$(1))
build/$(1)/prepare: $$(call objects,$(1),data/prepare.c $$(wildcard base/*.c data/[!p]*.c))
	$(2) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$^ -o $$@ $$(LIBS)
build/$(1)/tests/unit/%: build/$(1)/tests/unit/%.o $$(call objects,$(1),$$(TEST_SUPPORT) $$(LIBRARY) $$(NO_CUDA))
	$(2) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$^ -o $$@ $$(LDFLAGS_$$*) -lcmocka $$(LIBS)
build/$(1)/tests/gpu/%: build/$(1)/tests/gpu/%.o $$(call objects,$(1),$$(TEST_SUPPORT) $$(LIBRARY)) $$(call cuda_objects,$(1))
	$(2) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$^ -o $$@ -lcmocka $$(LIBS) $$(call cuda_libs,$(1))
build/$(1)/tests/bench/%: build/$(1)/tests/bench/%.o $$(call objects,$(1),$$(TEST_SUPPORT) $$(LIBRARY)) $$(call cuda_objects,$(1))
	$(2) $$(BASE_CFLAGS) $$(FLAGS_$(1)) $$^ -o $$@ -lcmocka $$(LIBS) $$(call cuda_libs,$(1))
endef
$(eval $(call flavour,release,$(CC)))
$(eval $(call flavour,asan,$(CC)))
$(eval $(call flavour,double,$(CC)))
$(eval $(call flavour,fuzz,$(FUZZ_CC)))

# The host's half of the GPU backends sees CUDA's headers, which are not ours to warn about.
$(call objects,release,$(CUDA_C)) $(patsubst %,build/release/tests/gpu/%.o,$(GPU_TESTS) list_kernels) $(patsubst %,build/release/tests/bench/%.o,$(GPU_BENCHES)): BASE_CFLAGS += -isystem $(CUDA_INCLUDE)
build/release/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@
$(patsubst %.cu,build/release/%.o,$(FUSED_CU) $(TEST_PROGRAM_CU)): build/release/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(FUSED_FLAGS) -MMD -MP -c $< -o $@ 2> $(@:.o=.ptxas) || { cat $(@:.o=.ptxas) >&2; exit 1; }
	@! grep -E -B 1 '[1-9][0-9]* bytes (stack frame|spill)' $(@:.o=.ptxas) || { echo '$<: a kernel uses local memory' >&2; \
	  ! { $(LOCAL_MEMORY_FAILS); } || { rm $@; exit 1; }; }
build/release/tests/gpu/test_programs build/release/tests/bench/bench_fused: $(patsubst %.cu,build/release/%.o,$(TEST_PROGRAM_CU))

# The tests of programs on the CPU: the same tests, the same programs, and tests/emulated for CUDA and the mainloop.
# CUDA's headers are C++ that g++ takes; its pragmas and attributes mean nothing to it. g++ does not find its own headers
# where /usr/include is named to it.
CXX ?= g++
EMULATED_FLAGS := -std=c++17 -O2 -Wall -Wextra -Werror -Wno-attributes -Wno-unknown-pragmas -fno-strict-aliasing -MMD -MP \
  -Itests/emulated -I. $(addprefix -isystem ,$(filter-out /usr/include/,$(CUDA_INCLUDE))) $(shell pkg-config --cflags openblas 2>/dev/null) -include tests/emulated/warp.h
EMULATED := $(patsubst %,build/release/emulated/%.o,$(wildcard tests/emulated/*.cpp kernels/fused/programs/*.cu) $(TEST_PROGRAM_CU))
$(EMULATED): build/release/emulated/%.o: % Makefile
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) -x c++ -c $< -o $@
build/release/tests/emulated/%: build/release/tests/gpu/%.o $(EMULATED) build/release/kernels/fused/program.o \
  $(call objects,release,$(TEST_SUPPORT) $(LIBRARY) $(NO_CUDA))
	@mkdir -p $(@D)
	$(CXX) -fopenmp $^ -o $@ -lcmocka $(LIBS)

build/fuzz/tests/fuzz/fuzz_%: build/fuzz/tests/fuzz/fuzz_%.o $(call objects,fuzz,$(LIBRARY) $(NO_CUDA))
	$(FUZZ_CC) $(FLAGS_fuzz) -fsanitize=fuzzer -fopenmp $^ -o $@ $(LIBS)

.SECONDARY:

# The revision reaches train.c through a file that is rewritten only when it changes.
build/version.h: FORCE
	@mkdir -p $(@D)
	@echo '#define CODA_VERSION "$(VERSION) ($(GIT_REVISION))"' > $@.new; \
	  cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(foreach f,release asan double fuzz,build/$(f)/train.o): build/version.h

# ---- What people call
train: build/release/train
	ln -sfn $< $@
prepare: build/release/prepare
	ln -sfn $< $@

.PHONY: all help test test-gpu bench kernels program test-program sanitize asan fuzz format clean FORCE
all: train prepare ## build ./train and ./prepare

# What the tests of ranges have NVTX load.
RECORDER := $(if $(HAVE_NVTX),build/release/tests/nvtx_recorder.so)
build/release/tests/nvtx_recorder.so: tests/support/nvtx_recorder.c Makefile
	@mkdir -p $(@D)
	$(CC) $(BASE_CFLAGS) $(FLAGS_release) $(EXTRA_range) -fPIC -shared $< -o $@

# What the tests of tracing load for CUPTI.
CUPTI_STUB := build/release/tests/cupti_stub.so
$(CUPTI_STUB): tests/support/cupti_stub.c Makefile
	@mkdir -p $(@D)
	$(CC) $(BASE_CFLAGS) $(FLAGS_release) -fPIC -shared $< -o $@
build/release/tests/unit/test_trace build/asan/tests/unit/test_trace: | $(CUPTI_STUB)

TEST_PROGRAMS := $(addprefix build/release/tests/unit/,$(TESTS)) $(addprefix build/double/tests/unit/,$(GRADCHECKS))
ASAN_PROGRAMS := $(addprefix build/asan/tests/unit/,$(TESTS))
EMULATED_TESTS := $(if $(HAVE_CUDA),$(addprefix build/release/tests/emulated/,test_programs))
test-programs: all $(RECORDER) $(CUPTI_STUB) $(TEST_PROGRAMS) $(ASAN_PROGRAMS) $(EMULATED_TESTS) $(if $(HAVE_CUDA),gpu-programs)
test: test-programs fuzz-programs ## build and run every test that needs no GPU, under ASan and UBSan and fuzzed, too
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/run_tests.sh $(TEST_PROGRAMS) $(EMULATED_TESTS) $(SCRIPT_TESTS) $(ASAN_PROGRAMS) \
	  $(addprefix build/fuzz/tests/fuzz/,$(if $(HAVE_FUZZER),$(FUZZERS)))

GPU_PROGRAMS := $(addprefix build/release/tests/gpu/,$(GPU_TESTS))
gpu-programs: all $(RECORDER) $(GPU_PROGRAMS) build/release/tests/gpu/list_kernels $(addprefix build/release/tests/bench/,$(GPU_BENCHES))
NO_TOOLKIT = @echo 'make: no CUDA toolkit (nvcc, cuBLASLt) was found; install one, or name its folder: make $@ CUDA_HOME=...' >&2; exit 1
test-gpu: $(if $(HAVE_CUDA),gpu-programs) ## build and run the tests that need a GPU
ifdef HAVE_CUDA
	scripts/run_tests.sh $(GPU_PROGRAMS) $(wildcard tests/gpu/test_*.sh)
else
	$(NO_TOOLKIT)
endif

bench: $(if $(HAVE_CUDA),train build/release/tests/bench/bench_fused) ## time each fused kernel, then layers and steps (scripts/compare.sh), against cuBLASLt and the unfused backend, on a GPU
ifdef HAVE_CUDA
	build/release/tests/bench/bench_fused all
	scripts/compare.sh
else
	$(NO_TOOLKIT)
endif

kernels: $(if $(HAVE_CUDA),build/release/tests/gpu/list_kernels) ## list the fused kernels: tile, stages, slots, shared memory, registers, spills
ifdef HAVE_CUDA
	@scripts/list_kernels.sh $< build/release/kernels/fused/programs
else
	$(NO_TOOLKIT)
endif

program: $(patsubst %.cu,build/release/%.o,$(if $(NAME),$(filter %/$(NAME).cu,$(FUSED_CU) $(TEST_PROGRAM_CU)))) ## compile one fused program, NAME=residual, and say what each tile shape takes
ifdef HAVE_CUDA
	@: $(or $^,$(error no file of programs has this name; make program NAME=residual))
	@sed -nE "s/.*entry function '.*TileILi([0-9]+)ELi([0-9]+)E.*/\1x\2/p; s/^ +(.*stack frame.*)/    \1/p; s/.*(Used .*)/    \1/p" $(^:.o=.ptxas)
else
	$(NO_TOOLKIT)
endif

test-program: $(if $(HAVE_CUDA),build/release/tests/emulated/test_programs) ## test one fused program without a GPU, NAME=residual, and SHAPE=77x136x72 if in one shape
ifdef HAVE_CUDA
	$< $(or $(NAME),$(error which one? make test-program NAME=residual)) $(SHAPE)
else
	$(NO_TOOLKIT)
endif

sanitize: $(if $(HAVE_CUDA),all build/release/tests/gpu/planted_faults) ## compute-sanitizer: memcheck, racecheck, initcheck, synccheck on a small model
	scripts/run_tests.sh tests/gpu/sanitize.sh

asan: build/asan/train build/asan/prepare $(RECORDER) $(CUPTI_STUB) $(ASAN_PROGRAMS) ## programs and scripts under ASan and UBSan
	TRAIN=build/asan/train PREPARE=build/asan/prepare scripts/run_tests.sh $(ASAN_PROGRAMS) $(SCRIPT_TESTS)

HAVE_FUZZER := $(shell echo 'int LLVMFuzzerTestOneInput(const char*d,long n);int LLVMFuzzerTestOneInput(const char*d,long n){return d==(char*)n;}' | \
  $(FUZZ_CC) -fopenmp -include omp.h -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null && echo yes)
.PHONY: fuzz-programs test-programs gpu-programs
fuzz-programs: $(if $(HAVE_FUZZER),$(addprefix build/fuzz/tests/fuzz/,$(FUZZERS)))
fuzz: fuzz-programs ## run the libFuzzer targets, FUZZ_SECONDS (60) each
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/run_tests.sh $(addprefix build/fuzz/tests/fuzz/,$(FUZZERS))

format: ## clang-format over the tree
	clang-format -i $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')

clean: ## remove everything that was built
	rm -rf build train prepare

help: ## this text
	@echo 'coda.c $(VERSION)'; echo
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo; echo '  ./scripts/quickstart.sh   from nothing to a model that writes'
	@echo '  ./scripts/test.sh         install what the tests need, build, run them'

-include $(shell find build -name '*.d' 2>/dev/null)
