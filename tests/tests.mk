# The tests, in folders by what they need: emulated CUDA's headers, fuzz clang, gpu, bench a GPU.
# There are two tiers. The first is `make test`; the second, `make test-all`, has the first and all
# that takes longer: sanitizers, fuzzers, slow scripts, every fault and every shape.
UNIT_TESTS := $(patsubst %.c,build/release/%,$(wildcard tests/unit/test_*.c))
ASAN_TESTS := $(UNIT_TESTS:build/release/%=build/asan/%)
GRADCHECKS := $(patsubst %.c,build/double/%,$(wildcard tests/unit/gradcheck_*.c))
SCRIPT_TESTS := $(wildcard tests/cli/test_*.sh)
SLOW_SCRIPTS := $(patsubst %,tests/cli/test_%.sh,arm bare_systems dist gpu_flags memory \
  model_folder night page_commands peers real_text rebuild run_folder)
# These send signals at moments that a busy machine would shift, or run tests, so they run alone.
TIMED_SCRIPTS := $(patsubst %,tests/cli/test_%.sh,bare_systems night resume)
scripts_of = $(filter-out $(TIMED_SCRIPTS),$1) --alone $(filter $(TIMED_SCRIPTS),$1)

# ---- tests/unit. tests.a is what tests share, and the library without a GPU.
SUPPORT := $(filter-out %_stub.c %_recorder.c %/slow_sync.c,$(wildcard tests/support/*.c))
SUPPORT := $(SUPPORT:.c=.o)
build/%/tests.a: $(addprefix build/%/,$(SUPPORT) $(LIBRARY:.c=.o) kernels/no_cuda.o); $(ARCHIVE)
$(foreach f,release asan double,$(eval build/$f/tests/unit/%: build/$f/tests/unit/%.o \
  build/$f/tests.a; $$(LINK) -lcmocka))
# Central differences mean nothing in fp32.
$(foreach f,release asan,$(eval build/$f/tests/unit/gradcheck_%:; \
  @echo 'make: gradchecks need double precision: make build/double/tests/unit/gradcheck_$$*' >&2; \
  exit 1))

# A test compares our declarations with cuDNN's headers.
build/%/test_attention_graph.o: EXTRA_FLAGS = $(NVTX_FLAGS)
# Calls that a test replaces: those that change files or allocate, to inject faults; the clock; and
# those that need a GPU.
WRAP_FAULTS := write open fsync rename renameat2 symlink mkdir unlink unlinkat rmdir malloc calloc \
  realloc
WRAP_BENCH := backend_open clock_gettime
build/%/test_folder_faults build/%/test_checkpoint_faults build/%/test_prepare_faults \
  build/%/test_background build/%/test_report build/%/test_changed_data: \
  EXTRA_LIBS = $(WRAP_FAULTS:%=-Wl,--wrap=%)
build/%/test_bench: EXTRA_LIBS = $(WRAP_BENCH:%=-Wl,--wrap=%)
build/%/test_gpu_facts: EXTRA_LIBS = -Wl,--wrap=gpu_find
WRAP_CHECK := gpu_recall gpu_remember backend_gpu_create backend_fused_supported backend_fuse
build/%/unit/test_check: EXTRA_LIBS = $(WRAP_CHECK:%=-Wl,--wrap=%)

# Libraries that tests have loaded, such as one for NVTX that writes ranges down.
LOADED := $(patsubst %,build/release/tests/%.so,symlink_stub slow_sync $(RECORDER))
SHARED = $(CC) $(C_FLAGS) $(CFLAGS) $(NVTX_FLAGS) -fPIC -shared
build/release/tests/%.so: tests/support/%.c $$(call changed,SHARED); $(call compile,SHARED)

# Drives the tokenizer for scripts/check_tokenizers.py.
TOKENIZE := build/release/tests/bench/tokenize
$(TOKENIZE): %: %.o build/release/tests.a; $(LINK)

# ---- tests/fuzz, where clang has libFuzzer
FUZZ_PROBE := -fopenmp -include omp.h -fsanitize=fuzzer,$(SANITIZERS) -x c - -o /dev/null
HAVE_FUZZER := $(shell echo 'int LLVMFuzzerTestOneInput(const char *d) { return !d; }' | \
  $(FUZZ_CC) $(FUZZ_PROBE) 2>/dev/null && echo yes)
FUZZERS := $(if $(HAVE_FUZZER),$(patsubst %.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c)))
build/fuzz/tests/fuzz/%: build/fuzz/tests/fuzz/%.o build/fuzz/coda.a; $(LINK) -fsanitize=fuzzer

ifdef HAVE_CUDA
# ---- tests/gpu and tests/bench. They share gpu_tests.a, and the fused programs that only tests
# launch; planted_faults has plain kernels, and a main of its own.
GPU_TESTS := $(patsubst %.c,build/release/%,$(wildcard tests/gpu/test_*.c))
# They run several at a time, the longest first. Alone: a run's memory is measured as all that is
# taken on the card, and the times of the bench and the check must not share it. And the fixtures:
# where eight processes share a GPU, cuBLASLt's kernels for matrices as small as 64 x 32 x 48 die
# of "an illegal instruction" in 11 of 48 runs (H100s), and in 1 of 16 where such products are not
# timed, but take the heuristics' first choice.
GPU_ALONE := $(patsubst %,tests/gpu/test_%.sh,memory bench) \
  $(patsubst %,build/release/tests/gpu/test_%,check fixtures)
GPU_LONG := $(addprefix build/release/tests/gpu/test_,programs operations) \
  $(patsubst %,tests/gpu/test_%.sh,runs offload background) build/release/tests/gpu/test_offload
GPU_TOGETHER := $(GPU_LONG) \
  $(filter-out $(GPU_ALONE) $(GPU_LONG),$(wildcard tests/gpu/test_*.sh) $(GPU_TESTS))
BENCHES := $(patsubst %.c,build/release/%,$(wildcard tests/bench/bench_*.c))
BENCH_FUSED := build/release/tests/bench/bench_fused
PLANTED_FAULTS := build/release/tests/gpu/planted_faults
TRAIN_FAULTS := build/release/tests/gpu/train_faults
GPU_PROGRAMS := $(GPU_TESTS) $(BENCHES) $(PLANTED_FAULTS) $(TRAIN_FAULTS)
TEST_CU := $(wildcard tests/*/programs/*.cu)
build/release/tests/%.o: tests/%.cu $$(call changed,FUSED); $(call compile,FUSED)
$(PLANTED_FAULTS).o: tests/gpu/planted_faults.cu $$(call changed,CUDA); $(call compile,CUDA)
$(TRAIN_FAULTS): build/release/train.o
WRAP_TRAIN := gpu_alloc gpu_alloc_host cudaEventSynchronize
$(TRAIN_FAULTS): EXTRA_LIBS = build/release/gpu.a $(WRAP_TRAIN:%=-Wl,--wrap=%)
TEST_C := $(wildcard tests/gpu/*.c tests/bench/*.c)
TEST_C := $(filter-out $(GPU_PROGRAMS:build/release/%=%.c) tests/bench/tokenize.c,$(TEST_C))
TEST_O := $(TEST_C:%.c=build/release/%.o)
build/release/gpu_tests.a: $(TEST_O) $(addprefix build/release/,$(SUPPORT)); $(ARCHIVE)
build/release/test_programs.a: $(TEST_CU:%.cu=build/release/%.o); $(ARCHIVE)
$(GPU_PROGRAMS:=.o) $(TEST_O): EXTRA_FLAGS = -isystem $(CUDA_INCLUDE)
$(GPU_PROGRAMS): %: %.o $(addprefix build/release/,gpu_tests.a test_programs.a gpu.a)
	$(LINK) -lcmocka $(CUDA_LIBS)
# `make program NAME=residual` compiles the file that defines this program.
FUSED_CU := $(filter kernels/fused/programs/%,$(CUDA_CU))
PROGRAM_NAMES = $(sort $(shell sed -nE 's/^DEFINE_PROGRAM.*, (\w+).*/\1/p' $(FUSED_CU) $(TEST_CU)))
PROGRAM := $(if $(NAME),$(shell grep -lE '^DEFINE_PROGRAM\(.*, $(NAME)\)' $(FUSED_CU) $(TEST_CU)))
PROGRAM := $(PROGRAM:%=build/release/%)

# ---- tests/emulated: the tests and the programs of the GPU, with a CPU's stand-ins for CUDA and
# the mainloop. CUDA's headers are C++ that g++ takes; its pragmas and attributes mean nothing to
# it. g++ does not find its own headers where /usr/include is named to it.
EMULATED_TESTS := $(addprefix build/release/tests/emulated/test_,programs batches)
EMULATE = $(CXX) -std=c++17 -O2 -Wall -Wextra -Werror -Wno-attributes -Wno-unknown-pragmas \
  -Wno-unused-parameter -fno-strict-aliasing -MMD -MP -Itests/emulated -I. \
  -include tests/emulated/warp.h \
  $(addprefix -isystem ,$(filter-out /usr/include/,$(CUDA_INCLUDE))) $(PACKAGE_FLAGS) -x c++ -c
EMULATED := $(wildcard tests/emulated/*.cpp kernels/fused/programs/*.cu) $(TEST_CU)
EMULATED := $(EMULATED:%=build/release/emulated/%.o)
$(EMULATED): build/release/emulated/%.o: % $$(call changed,EMULATE); $(call compile,EMULATE)
build/release/tests/emulated/%: build/release/tests/gpu/%.o $(EMULATED) \
  build/release/kernels/fused/program.o build/release/tests.a
	mkdir -p $(@D) && $(CXX) -fopenmp $(filter %.o %.a,$^) -o $@ -lcmocka $(LIBS)

# These kernels run as they are (tests/emulated/warp.h). g++ knows neither <<<>>> nor shared memory.
EMULATED_CU := $(patsubst %,build/release/emulated/kernels/cuda/%,choose decode loss)
$(EMULATED_CU:=.cpp): build/release/emulated/%.cpp: %.cu tests/tests.mk
	mkdir -p $(@D) && sed -e '1i #undef __shared__\n#define __shared__ STATIC_SHARED\n#line 1 "$<"' \
	  -e 's@<<<@ / on_grid(@; s@>>>@)@' $< > $@
$(EMULATED_CU:=.o): %.o: %.cpp $$(call changed,EMULATE); $(call compile,EMULATE)
EMULATED_KERNELS := build/release/tests/emulated/test_kernels
$(EMULATED_KERNELS).o: EXTRA_FLAGS = -isystem $(CUDA_INCLUDE)
$(EMULATED_KERNELS): %: %.o $(EMULATED_CU:=.o) build/release/tests.a \
  $(patsubst %,build/release/emulated/tests/emulated/%.cpp.o,warp cuda)
	mkdir -p $(@D) && $(CXX) -fopenmp $(filter %.o %.a,$^) -o $@ -lcmocka $(LIBS)

# test_NAME is of kernels/cuda/NAME.c. Of CUDA's functions those that the test defines go before.
STUBBED_TESTS := gpu attention attention_plan loans table
STUBBED_TESTS := $(addprefix build/release/tests/emulated/test_,$(STUBBED_TESTS))
$(STUBBED_TESTS:=.o): EXTRA_FLAGS = -isystem $(CUDA_INCLUDE)
$(STUBBED_TESTS): build/release/tests/emulated/test_%: build/release/tests/emulated/test_%.o \
  build/release/kernels/cuda/%.o build/release/kernels/cuda/cublaslt.o build/release/tests.a
	$(LINK) -Wl,-z,muldefs -lcmocka $(CUDA_LIBS)
endif

# ---- What the Makefile's targets ask for
QUICK_TESTS := $(UNIT_TESTS) $(GRADCHECKS) $(EMULATED_TESTS) $(EMULATED_KERNELS) $(STUBBED_TESTS)
QUICK_SCRIPTS := $(filter-out $(SLOW_SCRIPTS),$(SCRIPT_TESTS))
quick-programs: all $(LOADED) $(QUICK_TESTS)
test-programs: quick-programs $(ASAN_TESTS) $(GPU_PROGRAMS) $(DIST) $(PEERS)
asan-programs: build/asan/train build/asan/prepare $(LOADED) $(ASAN_TESTS)
fuzz-programs: $(FUZZERS)
gpu-programs: all $(LOADED) $(GPU_PROGRAMS)
