# The configuration and the everyday targets. The targets of a folder are in its .mk file.
# `make` alone prints the lines that begin with `##`, those of this file first.

# No built-in rules: everything that is made here has its rule here.
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDEXPANSION:
.SECONDARY:

# --- What to build for -----------------------------------------------------------------------------

NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
GPU_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
	sed -n '1s/^\([0-9]*\)\.\([0-9]*\)$$/sm_\1\2/p')

# cuda where both nvcc and a GPU are there, else the CPU backend, and that for another processor, too.
BACKEND ?= $(if $(and $(if $(CROSS_COMPILE),,$(GPU_ARCH)),$(shell command -v $(NVCC))),cuda,cpu)
DEBUG ?= 0
V ?= 0
WERROR ?= 0

# Without a GPU to ask: every generation since Turing that nvcc knows.
ALL_ARCHS = $(filter sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120,$(shell $(NVCC) --list-gpu-code 2>/dev/null))
ARCH ?= $(or $(GPU_ARCH),$(ALL_ARCHS))
# Oldest first, whatever the order they were given in.
override ARCH := $(shell printf '%s\n' $(ARCH) | sort -Vu)

ifeq ($(filter $(BACKEND),cpu cuda),)
$(error BACKEND=$(BACKEND): must be cpu or cuda)
endif
# The spaces go first: filter would take "1 0" for two right words.
$(foreach setting,DEBUG V WERROR,$(if $(filter x0 x1,$(subst $() ,,x$($(setting)))),,\
	$(error $(setting)=$($(setting)): must be 0 or 1)))

# --- Compilers and flags ---------------------------------------------------------------------------

# CROSS_COMPILE=aarch64-linux-gnu- is the prefix of the tools that build for another processor, in a folder of
# its own. HOSTCC compiles what runs during the build.
default_tool = $(if $(filter default undefined,$(origin $(1))),$(eval $(1) := $(CROSS_COMPILE)$(2)))
$(call default_tool,CC,gcc)
$(call default_tool,CXX,g++)
$(call default_tool,LD,ld)
$(call default_tool,AR,ar)
$(call default_tool,OBJCOPY,objcopy)
HOSTCC ?= $(if $(CROSS_COMPILE),gcc,$(CC))
PROCESSOR := $(addprefix -,$(patsubst %-,%,$(notdir $(CROSS_COMPILE))))
# .venv where `make deps` has made one; looked up when used, so that `make deps test` works in one call.
PYTHON = $(shell if test -x .venv/bin/python; then echo .venv/bin/python; else echo python3; fi)

comma := ,
empty :=
space := $(empty) $(empty)

WARNINGS := -Wall -Wextra -Wshadow -Wno-missing-field-initializers $(if $(filter 1,$(WERROR)),-Werror)
OPTIMISE := $(if $(filter 1,$(DEBUG)),-O0,-O2)
# Reports need lines and calls; where the variables are is for gdb alone, and takes g++ long to find out.
DEBUG_INFO := $(if $(filter 1,$(DEBUG)),-g,-g1)
# The objects of programs serve as shared libraries too.
PIC := -fPIC -fvisibility=hidden
# Prints a flag if the C++ compiler knows it.
if_known = $(shell $(CXX) $(1) -fsyntax-only -x c++ /dev/null 2>/dev/null && echo $(1))

BUILD_NAME := $(BACKEND)$(if $(filter cuda,$(BACKEND)),-$(subst $(space),-,$(strip $(ARCH))))
BUILD := build/$(BUILD_NAME)$(PROCESSOR)$(if $(filter 1,$(DEBUG)),-debug)

# Compiling and linking print one short line; V=1 prints the commands.
Q := $(if $(filter 1,$(V)),,@)
say = @printf '  %-6s %s\n' $(1) $(2)

# Records name the commit. New records in plots/results leave the commit as clean as it was.
HEAD = $(shell git rev-parse --short=12 HEAD 2>/dev/null)
DIRTY = $(shell git diff --quiet HEAD -- . ':(exclude)plots/results' 2>/dev/null || echo -dirty)
COMMIT ?= $(or $(addsuffix $(DIRTY),$(HEAD)),unknown)

# --- The steps -------------------------------------------------------------------------------------

# steps/stepNN_name.cu is stepNN. By its full name, stepNN_name, it can be built
# even if another file has the same number.
STEP_FILES := $(wildcard steps/step*_*.cu)
FULL_NAMES := $(sort $(STEP_FILES:steps/%.cu=%))
STEPS := $(sort $(foreach name,$(FULL_NAMES),$(firstword $(subst _, ,$(name)))))

# The sources of a step by its short or its full name, of which there must be one.
sources_of = $(or $(filter steps/$(1).cu,$(STEP_FILES)),$(filter steps/$(1)_%.cu,$(STEP_FILES)))
AMBIGUOUS := $(foreach step,$(STEPS),$(if $(word 2,$(call sources_of,$(step))),$(step)))
two_files = $(1) is the name of $(words $(call sources_of,$(1))) files: $(call sources_of,$(1)). \
	Build one of them by its full name, as in: make $(notdir $(basename $(lastword $(call sources_of,$(1)))))
source_of = $(if $(filter $(1),$(AMBIGUOUS)),$(error $(two_files)),$(call sources_of,$(1)))
# What its objects are named after.
stem_of = $(if $(filter $(1),$(AMBIGUOUS)),$(1),$(notdir $(basename $(call sources_of,$(1)))))

# STEP=04, 02b or 02_mine, for the targets that take one.
STEP_NAME = $(STEP:%=step%)
needs_step = @test -n "$(filter $(STEP_NAME),$(STEPS) $(FULL_NAMES))" || \
	{ echo "make $@: STEP=$(STEP): must be one of: $(STEPS:step%=%)" >&2; exit 2; }

# --- Everyday targets ------------------------------------------------------------------------------

## make stepNN            build one step; then run ./stepNN (--help lists its options)
## make all               build every step
## make check STEP=04     is the step right where tiles are incomplete, masked or empty? without STEP: every step
## make diffNN            what step NN changes in the step that it builds on
## make lab               count what every step does on the CPU backend, into build/lab.md
## make deps              install what the tests need (Debian packages, and Python's in .venv)
## make test              run the tests: test-unit and test-e2e
## make bench             time the steps in turns with PyTorch's kernels (needs a GPU)
## make plots             draw the figures from plots/results into build/plots
## make clean             remove all that was built

.PHONY: help all check clean FORCE

help:
	@sed -n 's/^## //p' Makefile
	@echo
	@echo "Steps:    $(STEPS)"
	@echo "Settings: BACKEND=cuda|cpu (now: $(BACKEND))   ARCH=sm_90 (now: $(ARCH))"
	@echo "          DEBUG=1 for gdb and cuda-gdb   V=1 shows the commands   WERROR=1 makes warnings errors"
	@echo "          CROSS_COMPILE=aarch64-linux-gnu- builds for arm64"
	@echo
	@sed -n 's/^## //p' $(filter %.mk,$(MAKEFILE_LIST))

all: $(STEPS)

# A copy, so that ./stepNN is always of the backend asked for last.
$(STEPS) $(FULL_NAMES): %: $(BUILD)/% build/selected
	@cp --remove-destination $< $@

CHECKED_STEPS = $(if $(STEP),$(filter $(STEP_NAME),$(STEPS) $(FULL_NAMES)),$(STEPS))
check: $$(CHECKED_STEPS)
	$(if $(STEP),$(needs_step))
	@tests/check_steps.sh $(^:%=./%)

# A source without its comments and blank lines.
code_of = sed -e 's:/\*.*\*/::' -e '/\/\*/,/\*\//d' -e 's://.*::' -e 's/ *$$//' -e '/^$$/d' $(1)
# The step that a step builds on, as its descriptor says.
after = $(shell sed -n 's/^ *\.after = "\(.*\)",$$/\1/p' $(call source_of,$(1)))

# The difference is what the step teaches; exit code 1 of diff is no error.
diff%:
	@test -n "$(and $(filter step$*,$(STEPS)),$(call after,step$*))" || \
	  { echo "make diff$*: there is no step $* that builds on another" >&2; exit 2; }
	@diff -u $(call source_of,$(call after,step$*)) $(call source_of,step$*) || test $$? -eq 1
	@added=$$($(call code_of,$(call source_of,$(call after,step$*))) | \
	  { $(call code_of,$(call source_of,step$*)) | diff /dev/fd/3 - | grep -c '^>'; } 3<&0); \
	  echo "$$added lines of code added, comments and blank lines apart"

clean:
	rm -rf build $(STEPS) $(FULL_NAMES)

# --- What rebuilds what ----------------------------------------------------------------------------

# Rewritten only when the content changes, so that what depends on it is rebuilt exactly then.
write_if_changed = mkdir -p $(@D); echo '$(1)' | cmp -s - $@ || echo '$(1)' > $@

build/selected: FORCE
	@$(call write_if_changed,$(BUILD))

# Flags of one target are private to it: this file, made on the way, must not see them. -Werror does not
# change what is compiled.
all_flags = $(CC) $(CXX) $(HOST_FLAGS) $(VECTORISE) $(SIMT_FLAGS) $(STEP_OPTIMISE) $(CHECKING) \
	$(if $(filter cuda,$(BACKEND)),$(NVCC) $(NVCC_FLAGS) $(FAST:1=--Ofast-compile=max))
$(BUILD)/flags: FORCE
	@$(call write_if_changed,$(filter-out -Werror all-warnings,$(subst $(comma)-Werror,,$(all_flags))))

$(BUILD)/commit.h: FORCE
	@$(call write_if_changed,#define COMMIT "$(COMMIT)")

FORCE:

# Targets that compile nothing.
COMPILE_NOTHING := help clean diff%
# Says in a recipe what one target alone needs.
recipe_needs = @command -v $(1) >/dev/null || \
	{ echo "$(1) not found. Install it: sudo apt-get install $(2)" >&2; exit 1; }

include common/host/host.mk
ifeq ($(BACKEND),cpu)
include common/simt/simt.mk
endif
include steps/steps.mk
include steps/foundations/foundations.mk
include steps/exercises/exercises.mk
include plots/plots.mk
include docs/docs.mk
include tests/tests.mk

# --- What must be there ----------------------------------------------------------------------------

GOALS := $(or $(MAKECMDGOALS),help)
needs = $(if $(shell command -v $(1)),,$(error $(1) not found. Install it: $(2)))
ifneq ($(filter-out $(COMPILE_NOTHING),$(GOALS)),)
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
else
# Installing comes first when more is asked for, with -j too: all that is compiled needs the flags.
$(BUILD)/flags $(filter-out deps,$(GOALS)): | deps
endif
endif

-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d $(BUILD)/*/*/*/*.d $(BUILD)/*/*/*/*/*.d)
