# What the library and the two programs are made of, and how kernels are compiled.

# Of the GPU backends these files need no CUDA: every flavour has them, and CPU tests try them.
CUDA_FREE := $(patsubst %,kernels/cuda/%.c,attention_graph choices cudnn) kernels/fused/tiles.c
LIBRARY := base data data/* data/*/* model model/* model/*/* kernels kernels/cpu
LIBRARY := $(wildcard $(LIBRARY:=/*.c))
LIBRARY := $(filter-out %/prepare.c %/no_cuda.c,$(LIBRARY)) $(CUDA_FREE)

# The stem of these rules is the flavour. coda.a is the library without a GPU. The linker takes
# from an archive only the files that a program needs.
build/%/coda.a: $(addprefix build/%/,$(LIBRARY:.c=.o) kernels/no_cuda.o); $(ARCHIVE)
build/%/train: build/%/train.o build/%/$$(or $$(BACKENDS),coda.a) $$(call changed,BACKENDS)
	$(LINK) $(if $(BACKENDS),$(CUDA_LIBS))
	$(call keep,BACKENDS)
build/%/prepare: build/%/data/prepare/prepare.o build/%/coda.a; $(LINK)

# Our operations and steps for scripts/peers/kernels.py, in PyTorch's process. Its calls stay inside
# of the library: PyTorch has a CUDA runtime of its own.
PEERS := build/shared/peers.so
$(PEERS): build/shared/scripts/peers/kernels.o build/shared/$$(or $$(BACKENDS),coda.a) \
  $$(call changed,BACKENDS)
	$(LINK) $(if $(BACKENDS),$(CUDA_LIBS))
	$(call keep,BACKENDS)
$(PEERS): EXTRA_LIBS = -shared -Wl,-Bsymbolic

# The same programs for `make dist`: their libraries are in the folder lib beside them, and so are
# the libraries of these (RPATH, which RUNPATH is not).
BESIDE := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib'
DIST := build/dist/train build/dist/prepare
build/dist/train: build/release/train.o build/release/$$(or $$(BACKENDS),coda.a) \
  $$(call changed,BACKENDS)
	mkdir -p $(@D) && $(LINK) $(if $(BACKENDS),$(CUDA_LIBS)) $(BESIDE)
	$(call keep,BACKENDS)
build/dist/prepare: build/release/data/prepare/prepare.o build/release/coda.a
	mkdir -p $(@D) && $(LINK) $(BESIDE)
$(FLAVOURS:%=build/%/train.o): EXTRA_FLAGS = -DCODA_VERSION='"$(VERSION) ($(REVISION))"'

# ---- Where CUDA is: CUDA_HOME, nvcc on the PATH, or the usual places. Debian has it in /usr.
CUDA_HOME ?= $(firstword $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)) \
  $(wildcard /usr/local/cuda /opt/cuda /usr/local/cuda-*))
NVCC ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
CUBLASLT_H := $(firstword $(wildcard $(addsuffix /include/cublasLt.h,$(CUDA_HOME) /usr)))
CUDART := $(firstword $(wildcard $(addsuffix /libcudart_static.a,$(CUDA_HOME)/lib64 \
  $(CUDA_HOME)/targets/*/lib /usr/lib/*-linux-gnu)))

# NVTX is headers alone: where they are found, every flavour has the ranges of base/range.c.
NVTX_FLAGS := $(addprefix -idirafter ,$(wildcard $(CUDA_HOME)/include))
RECORDER := $(shell $(CC) $(NVTX_FLAGS) -E -include nvtx3/nvToolsExt.h -x c /dev/null \
  >/dev/null 2>&1 && echo nvtx_recorder)
build/%/base/range.o: EXTRA_FLAGS = $(NVTX_FLAGS)

# ---- The GPU backends, in the release flavour alone, and only where a toolkit is found. Without
# them kernels/no_cuda.c says that they are missing.
ifneq ($(and $(NVCC),$(CUBLASLT_H),$(CUDART)),)
HAVE_CUDA := yes
CUDA_FOLDERS := kernels/cuda kernels/unfused kernels/fused kernels/fused/programs
CUDA_C := $(filter-out $(LIBRARY),$(wildcard $(CUDA_FOLDERS:%=%/*.c)))
CUDA_CU := $(wildcard $(CUDA_FOLDERS:%=%/*.cu))
CUDA_O := $(addprefix build/release/,$(CUDA_C:.c=.o) $(CUDA_CU:.cu=.o))
# cuBLASLt is loaded when a GPU is used, from this folder or where the system finds it.
CUDA_LIBS = $(CUDART) $(if $(filter $(DIST),$@),,-Wl,-rpath,$(dir $(CUDART))) \
  -lstdc++ -lrt -lpthread
build/release/gpu.a: $(addprefix build/release/,$(LIBRARY:.c=.o)) $(CUDA_O); $(ARCHIVE)
SHARED_O := $(addprefix build/shared/,$(LIBRARY:.c=.o) $(CUDA_C:.c=.o))
build/shared/gpu.a: $(SHARED_O) $(CUDA_CU:%.cu=build/release/%.o); $(ARCHIVE)
build/release/train build/dist/train $(PEERS): BACKENDS = gpu.a

# CUDA's headers are not ours to warn about.
CUDA_INCLUDE := $(dir $(CUBLASLT_H))
$(CUDA_O) $(CUDA_C:%.c=build/shared/%.o) build/shared/scripts/peers/kernels.o: EXTRA_FLAGS = \
  -isystem $(CUDA_INCLUDE)

# For the GPU that is here, or for all that the backends serve. CUDA_ARCHS="80 90" chooses: machine
# code for each, and PTX of the last without a letter, which other GPUs' drivers compile when they
# first need it. 90a is 90 with wgmma, 120f are 120 and 121 with block-scaled FP8. What is compiled
# for 80 is assembled for 86, too: half the cost.
ALL_ARCHS := 80 86 89 90a 120f
GPU_HERE := $(shell PATH=$$PATH:/usr/lib/wsl/lib nvidia-smi --query-gpu=compute_cap \
  --format=csv,noheader 2>/dev/null | grep -xE '([89]|1[0-9])\.[0-9]' | tr -d . | sort -un)
override CUDA_ARCHS := $(or $(CUDA_ARCHS),$(GPU_HERE),$(ALL_ARCHS))
override CUDA_ARCHS := $(patsubst 12%,120f,$(patsubst 90,90a,$(CUDA_ARCHS)))
compiled = $(if $(and $(filter 86,$1),$(filter 80,$(CUDA_ARCHS))),80,$1)
gencode = $(foreach a,$1,-gencode arch=compute_$(call compiled,$a),code=sm_$a) \
  $(foreach a,$(lastword $(filter-out %a %f,$1)),-gencode arch=compute_$a,code=compute_$a)
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -I. -Werror all-warnings -MMD -MP \
  -Xcompiler -Wall,-Wextra,-fPIC
CUDA = $(NVCC) $(NVCC_FLAGS) $(if $(filter %/draw.o %/choose.o,$@),-fmad=false) \
  $(call gencode,$(CUDA_ARCHS)) -c
build/release/%.o: %.cu $$(call changed,CUDA); $(call compile,CUDA)

# The build fails if a fused kernel uses local memory on any of these GPUs.
FUSED = scripts/compile_fused.sh $(@:.o=.ptxas) $(CUDA) -Xptxas -v
build/release/kernels/fused/%.o: kernels/fused/%.cu $$(call changed,FUSED); $(call compile,FUSED)
endif
