# One rule per kind of thing. `make` alone lists what can be made.

# No built-in rules: everything that is made here has its rule here.
MAKEFLAGS += --no-builtin-rules

# --- What to build for -----------------------------------------------------------------------------

NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
GPU_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
	sed -n '1s/^\([0-9]*\)\.\([0-9]*\)$$/sm_\1\2/p')

# cuda where both nvcc and a GPU are there, else the CPU backend.
BACKEND ?= $(if $(and $(GPU_ARCH),$(shell command -v $(NVCC))),cuda,cpu)
DEBUG ?= 0
V ?= 0
WERROR ?= 0

# Without a GPU to ask: every generation since Ampere, and Turing for the steps without tensor cores.
ALL_ARCHS = sm_80 sm_86 sm_89 sm_90
TURING_STEPS = step01 step02
ARCH ?= $(or $(GPU_ARCH),$(ALL_ARCHS))
# Oldest first, whatever the order they were given in.
override ARCH := $(shell printf '%s\n' $(ARCH) | sort -Vu)

STEPS := $(sort $(foreach f,$(wildcard steps/step*_*.cu),$(firstword $(subst _, ,$(notdir $(f))))))

ifeq ($(filter $(BACKEND),cpu cuda),)
$(error BACKEND=$(BACKEND): must be cpu or cuda)
endif
# The spaces go first: filter would take "1 0" for two right words.
$(foreach setting,DEBUG V WERROR,$(if $(filter x0 x1,$(subst $() ,,x$($(setting)))),,\
	$(error $(setting)=$($(setting)): must be 0 or 1)))

# --- Compilers and flags ---------------------------------------------------------------------------

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
OBJCOPY ?= objcopy

comma := ,
empty :=
space := $(empty) $(empty)
# What was measured is not what is measured: new rows leave the source as clean as it was.
HEAD = $(shell git rev-parse --short=12 HEAD 2>/dev/null)
DIRTY = $(shell git diff --quiet HEAD -- . ':(exclude)plots/results' 2>/dev/null || echo -dirty)
COMMIT ?= $(or $(addsuffix $(DIRTY),$(HEAD)),unknown)

WARNINGS := -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror)
OPTIMISE := $(if $(filter 1,$(DEBUG)),-O0,-O2)
# No contraction to fused multiply-adds: the generators promise the same bits on every machine.
HOST_FLAGS = -std=c11 $(OPTIMISE) -g $(WARNINGS) -ffp-contract=off -fopenmp -Icommon
# -O3 vectorises the two hot loops: the reference, and mma of the CPU backend.
VECTORISE := $(if $(filter 1,$(DEBUG)),,-O3)

# The objects of programs serve as shared libraries too.
PIC := -fPIC -fvisibility=hidden

# Kernels on the CPU backend. Shared memory is one array of bytes that holds many types, hence
# -fno-strict-aliasing; -fno-extern-tls-init, which clang does not know, spares a call at each use of
# it; -fstack-clash-protection lets no large frame jump over the guard below a fiber's stack;
# -fno-optimize-sibling-calls keeps calls calls, so that reports can say who called. DWARF 4, as
# addr2line up to binutils 2.40 names the .cpp for lines of the first file in a table of DWARF 5.
if_known = $(shell $(CXX) $(1) -fsyntax-only -x c++ /dev/null 2>/dev/null && echo $(1))
NO_TLS_INIT = $(eval NO_TLS_INIT := $$(call if_known,-fno-extern-tls-init))$(NO_TLS_INIT)
SIMT_FLAGS = -std=c++17 $(OPTIMISE) $(PIC) -gdwarf-4 $(WARNINGS) -Wno-unknown-pragmas -fno-strict-aliasing \
	$(NO_TLS_INIT) -ffp-contract=off -fstack-clash-protection -fno-optimize-sibling-calls \
	-Icommon -Icommon/simt/include
# Misaligned accesses, which a GPU refuses, are reported by debug builds and tests.
CHECK_ALIGNMENT := -fsanitize=alignment
KERNEL_CHECKS := $(if $(filter 1,$(DEBUG)),$(CHECK_ALIGNMENT))
SIMT_RUNTIME_FLAGS = -std=c11 $(OPTIMISE) -g $(WARNINGS) -fPIC -Icommon -Icommon/simt/include

CUDA_INCLUDE = $(abspath $(dir $(shell command -v $(NVCC)))../include)
NVCC_FLAGS = -std=c++17 -g -lineinfo -Icommon -Xcompiler $(subst $(space),$(comma),$(strip $(WARNINGS) $(PIC))) \
	$(if $(filter 1,$(WERROR)),-Werror all-warnings)
ifeq ($(DEBUG),1)
NVCC_FLAGS := $(filter-out -lineinfo,$(NVCC_FLAGS)) -G
endif
# Machine code for each architecture, and PTX of the newest so that later GPUs run too: that of sm_90,
# since what is made for sm_90a runs nowhere else.
newest = $(patsubst sm_%,compute_%,$(lastword $(or $(filter-out %a %f,$(1)),$(1))))
gencode = $(foreach a,$(1),-gencode arch=$(a:sm_%=compute_%)$(comma)code=$(a)) \
	-gencode arch=$(call newest,$(1))$(comma)code=$(call newest,$(1))
# sm_75 joins the default list only.
archs_of = $(if $(filter $(1),$(TURING_STEPS)),$(if $(subst $(ALL_ARCHS),,$(ARCH)),,sm_75 ))$(ARCH)

BUILD_NAME := $(BACKEND)$(if $(filter cuda,$(BACKEND)),-$(subst $(space),-,$(strip $(ARCH))))
BUILD := build/$(BUILD_NAME)$(if $(filter 1,$(DEBUG)),-debug)$(if $(filter 1,$(WERROR)),-werror)

# Compiling and linking print one short line; V=1 prints the commands.
Q := $(if $(filter 1,$(V)),,@)
say = @printf '  %-6s %s\n' $(1) $(2)

# --- What must be there ----------------------------------------------------------------------------

needs = $(if $(shell command -v $(1)),,$(error $(1) not found. Install it: $(2)))
# The same in a recipe, for what one target alone wants.
recipe_needs = @command -v $(1) >/dev/null || \
	{ echo "$(1) not found. Install it: sudo apt-get install $(2)" >&2; exit 1; }
GOALS := $(or $(MAKECMDGOALS),help)
ifneq ($(filter-out help clean deps check-format activations compare layouts plots readme diff%,$(GOALS)),)
ifeq ($(filter deps,$(GOALS)),)
$(call needs,$(CC),sudo apt-get install gcc)
$(call needs,$(CXX),sudo apt-get install g++)
ifeq ($(BACKEND),cuda)
$(call needs,$(NVCC),the CUDA Toolkit 12.4 or later from developer.nvidia.com/cuda-downloads; BACKEND=cpu needs none)
KNOWN_ARCHS := $(shell $(NVCC) --list-gpu-code)
UNKNOWN_ARCHS := $(filter-out $(KNOWN_ARCHS) $(KNOWN_ARCHS:%=%a) $(KNOWN_ARCHS:%=%f),$(ARCH))
ifneq ($(UNKNOWN_ARCHS),)
$(error ARCH="$(ARCH)": nvcc does not know $(UNKNOWN_ARCHS), must be one or more of: $(KNOWN_ARCHS))
endif
endif
endif
endif

# --- What can be made ------------------------------------------------------------------------------

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDEXPANSION:
.SECONDARY:
.PHONY: help all activations real-input lab libraries test test-unit test-e2e test-valgrind deps check-format lint clean FORCE

help:
	@echo "make stepNN       build one of: $(STEPS); then run ./stepNN (--help lists its options)"
	@echo "make all          build every step"
	@echo "make deps         install what the tests need (Debian packages, and Python's in .venv)"
	@echo "make test         run every test: test-unit and test-e2e"
	@echo "make test-unit    C unit tests, under the address and undefined-behaviour sanitizers"
	@echo "make test-e2e     the programs end to end, against NumPy"
	@echo "make test-valgrind the unit tests of the host code under valgrind (minutes)"
	@echo "make mutants      do the checks notice every small fault in a kernel? STEP=03 for one step (minutes each)"
	@echo "make lab-orders   right kernels have no findings in 22 orders of their threads (many minutes)"
	@echo "make check-format check the layout of the source with clang-format"
	@echo "make lint         cppcheck on the host code; compiler warnings as errors"
	@echo "make sweep        time every step over the standard grid (GPU, under 10 minutes; QUICK=1: one)"
	@echo "make ceilings     measure what this GPU can do at best, for the reports to compare with"
	@echo "make profile      count one pass of STEP=03 with Nsight Compute (GPU); PROBLEM=\"-n 1024 -d 64\" for another problem"
	@echo "make sass         the machine code of STEP=03, and what it is made of; make ptx: its PTX (nvcc, no GPU)"
	@echo "make plots        draw the figures from plots/results into build/plots (GPU=, PLOTS=: others)"
	@echo "make readme       rewrite the table of README.md, and its picture, from plots/results"
	@echo "make activations  run real language models, which are installed, for the inputs in tests/data"
	@echo "make real-input   run every step on those and on random inputs, for docs/real-input.md"
	@echo "make compare      measure the steps beside PyTorch's kernels on a GPU, into plots/results (minutes; QUICK=1: one)"
	@echo "make lab          count what every step does on the CPU backend, into build/lab.md"
	@echo "make layouts      draw the registers of ldmatrix and mma, as a GPU filled them, into build/plots"
	@echo "make diffNN       what step NN changes in the step before it"
	@echo "make clean        remove all that was built"
	@echo
	@echo "BACKEND=cuda|cpu  (now: $(BACKEND))   ARCH=sm_90 (now: $(ARCH))   DEBUG=1 for gdb and cuda-gdb   V=1 shows commands"

all: $(STEPS)

# A copy, so that ./stepNN is always of the backend asked for last.
$(STEPS): %: $(BUILD)/% build/selected
	@cp --remove-destination $< $@

# Rewritten only when the content changes, so that what depends on it is rebuilt exactly then.
write_if_changed = mkdir -p $(@D); echo '$(1)' | cmp -s - $@ || echo '$(1)' > $@

build/selected: FORCE
	@$(call write_if_changed,$(BUILD))

$(BUILD)/flags: FORCE
	@$(call write_if_changed,$(CC) $(CXX) $(HOST_FLAGS) $(SIMT_FLAGS) $(if $(filter cpu,$(BACKEND)),$(CHECKING)) $(if $(filter cuda,$(BACKEND)),$(NVCC) $(NVCC_FLAGS)))

$(BUILD)/commit.h: FORCE
	@$(call write_if_changed,#define COMMIT "$(COMMIT)")

# Ceilings that other loops measured are not comparable.
$(BUILD)/ceiling_version.h: common/host/device/ceiling.cu common/device/ptx.cuh
	@mkdir -p $(@D)
	@echo "#define CEILING_VERSION \"$$(cat $^ | cksum)\"" > $@

FORCE:

# --- Host code: C11, the same for both backends but for the runtime's headers ------------------------

HOST_SOURCES := $(wildcard common/host/*.c common/host/*/*.c) \
	$(if $(filter cpu,$(BACKEND)),$(wildcard common/host/report/lab/*.c))
HOST_OBJECTS := $(HOST_SOURCES:common/%.c=$(BUILD)/%.o) $(BUILD)/host/device/ceiling.o
RUNTIME_INCLUDE = $(if $(filter cuda,$(BACKEND)),-isystem $(CUDA_INCLUDE),-Icommon/simt/include)

$(BUILD)/host/check/reference.o: HOST_FLAGS += $(VECTORISE)
$(BUILD)/host/base/version.o: $(BUILD)/commit.h
$(BUILD)/host/base/version.o: HOST_FLAGS += -I$(BUILD)
$(BUILD)/host/device/ceiling_cache.o: $(BUILD)/ceiling_version.h
$(BUILD)/host/device/ceiling_cache.o: HOST_FLAGS += -I$(BUILD)

$(BUILD)/host/%.o: common/host/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

# --- Kernels ---------------------------------------------------------------------------------------

ifeq ($(BACKEND),cuda)

# Said before nvcc says it in a hundred lines.
too_old = $(if $(filter $(1),$(TURING_STEPS)),,$(filter sm_5% sm_6% sm_7%,$(ARCH)))
refuse_too_old = $(if $(too_old),@echo "$(1): needs sm_80 or later$(comma) not $(too_old);\
	only $(TURING_STEPS) and BACKEND=cpu do without" >&2; exit 1)

$(STEPS:%=$(BUILD)/steps/%.o): $(BUILD)/steps/%.o: $$(wildcard steps/$$*_*.cu) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call refuse_too_old,$*)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(call gencode,$(call archs_of,$*)) -MMD -MP -c $< -o $@

$(BUILD)/host/device/ceiling.o: common/host/device/ceiling.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(call gencode,$(call archs_of,step01)) -MMD -MP -c $< -o $@

# What a GPU's registers hold after ldmatrix and mma, for the test of the CPU backend's layouts, and
# what it counts of cp.async.
$(BUILD)/layouts $(BUILD)/copies: $(BUILD)/%: tests/gpu/%.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(call gencode,$(ARCH)) -MMD -MP $< -o $@

$(STEPS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/steps/%.o $(HOST_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(NVCC) $(filter %.o,$^) -o $@ -cudart static -Xcompiler -fopenmp -lm

else

SIMT_OBJECTS := $(patsubst common/%.c,$(BUILD)/%.o,$(wildcard common/simt/runtime/*.c)) \
	$(patsubst common/%.S,$(BUILD)/%.o,$(wildcard common/simt/runtime/*.S))

# The lab, which watches kernels for --report; steps as libraries do without.
LAB_OBJECTS := $(patsubst common/%.c,$(BUILD)/%.o,$(wildcard common/simt/lab/*.c))

# The checking build of a kernel calls the lab at each load and store: -fsanitize=thread, but the
# lab's own functions; -fsanitize=bounds tells it of indices that an array does not have. -O1, as
# counts do not depend on it and compiling takes half the time. g++ must not move loads of static
# arrays out of a condition within a loop: threads that do not meet it would make them too.
CHECKING := -O1 -DSIMT_CHECKING -fsanitize=thread,bounds $(call if_known,-fno-gnu-unique) \
	$(call if_known,-fno-tree-loop-im) \
	$(call if_known,--param tsan-instrument-func-entry-exit=0) \
	$(call if_known,-mllvm -tsan-instrument-func-entry-exit=0)

# Kernel launches become C++; a launch is found as CUDA's own lexer would find it.
$(BUILD)/rewrite_launches: common/simt/rewrite_launches.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -std=c11 -O1 $(WARNINGS) $< -o $@

define compile_cu
@mkdir -p $(@D)
$(call say,CXX,$<)
$(Q)$(BUILD)/rewrite_launches $< > $(@:.o=.cpp)
$(Q)$(CXX) $(SIMT_FLAGS) $(KERNEL_CHECKS) -MMD -MP -MT $@ -c $(@:.o=.cpp) -o $@
endef

$(STEPS:%=$(BUILD)/steps/%.o): $(BUILD)/steps/%.o: $$(wildcard steps/$$*_*.cu) $(BUILD)/rewrite_launches $(BUILD)/flags
	$(compile_cu)

# Compiled once more for --report. All its names become local but that of its descriptor, so that
# both builds of a step fit into one program.
$(STEPS:%=$(BUILD)/checked/%.all.o): $(BUILD)/checked/%.all.o: $$(wildcard steps/$$*_*.cu) $(BUILD)/rewrite_launches $(BUILD)/flags
	$(compile_cu)

$(STEPS:%=$(BUILD)/checked/%.all.o): SIMT_FLAGS += $(CHECKING)

$(STEPS:%=$(BUILD)/checked/%.o): %.o: %.all.o
	$(Q)$(LD) -r --force-group-allocation $< -o $@
	$(Q)$(OBJCOPY) --redefine-sym step=step_checked --keep-global-symbol=step_checked $@

$(BUILD)/host/device/ceiling.o: common/host/device/ceiling.cu $(BUILD)/rewrite_launches $(BUILD)/flags
	$(compile_cu)

$(BUILD)/gpu/layouts.o: tests/gpu/layouts.cu $(BUILD)/rewrite_launches $(BUILD)/flags
	$(compile_cu)

$(BUILD)/layouts: $(BUILD)/gpu/layouts.o $(SIMT_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -o $@ -lpthread -lm

$(BUILD)/simt/runtime/tensor.o: SIMT_RUNTIME_FLAGS += $(VECTORISE)

$(BUILD)/simt/%.o: common/simt/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(SIMT_RUNTIME_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/simt/%.o: common/simt/%.S $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,AS,$<)
	$(Q)$(CC) -c $< -o $@

$(STEPS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/steps/%.o $(BUILD)/checked/%.o $(HOST_OBJECTS) \
    $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -o $@ -fopenmp -lpthread -lm

endif

-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d $(BUILD)/*/*/*/*.d)

include tests/tests.mk
include plots/plots.mk

# --- Documents and cleaning ------------------------------------------------------------------------

# The two files differ by what the step teaches; exit code 1 of diff is no error.
diff%:
	@set -- $$(ls steps/step*_*.cu | grep -B 1 "step$*_"); \
	test $$# -eq 2 || { echo "make diff$*: there is no step $* with one before it"; exit 2; }; \
	diff -u "$$1" "$$2" || test $$? -eq 1

clean:
	rm -rf build $(STEPS)
