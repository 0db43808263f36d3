# What is measured on a GPU, and what is made of it. Included by the Makefile; docs/measuring.md explains.

RESULTS := plots/results
QUICK ?= 0
$(if $(filter x0 x1,$(subst $() ,,x$(QUICK))),,$(error QUICK=$(QUICK): must be 0 or 1))

.PHONY: sweep ceilings profile sass ptx

# --- Times ------------------------------------------------------------------------------------------

# Nothing is compiled for a backend whose times would mean nothing.
TIMED_STEPS := $(if $(filter cuda,$(BACKEND)),$(STEPS:%=$(BUILD)/%))
times_need_gpu = @test "$(BACKEND)" = cuda || \
	{ echo "make $@: times need a GPU, and this is BACKEND=$(BACKEND); BACKEND=cuda, where there is one" >&2; exit 77; }

sweep: $(TIMED_STEPS)
	$(times_need_gpu)
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/sweep.py $(if $(filter 1,$(QUICK)),--quick) $(BUILD) "$(RESULTS)"

ceilings: $(firstword $(TIMED_STEPS))
	$(times_need_gpu)
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/ceilings.py $< "$(RESULTS)"

# --- What a profiler and the compiler say of one step -------------------------------------------------

PROBLEM ?= -b 4 -H 16 -n 4096 -d 128
STEP_SOURCE = $(wildcard steps/step$(STEP)_*.cu)
# The GPU's architecture, or the newest of those that are built for.
ONE_ARCH := $(lastword $(ARCH))
LISTING = build/step$(STEP)_$(ONE_ARCH)

needs_step = @test $(words $(STEP_SOURCE)) -eq 1 || \
	{ echo "make $@: STEP=$(STEP): must be one of: $(STEPS:step%=%)" >&2; exit 2; }
needs_nvcc = @command -v $(NVCC) >/dev/null || { echo "make $@: $(NVCC) not found. Install it:" \
	"the CUDA Toolkit 12.4 or later from developer.nvidia.com/cuda-downloads" >&2; exit 1; }
# Toolkits may come in parts, and both of these print machine code; the first names source lines too.
disassembler = $(or $(call tool,nvdisasm,-c -g),$(call tool,cuobjdump,-sass))
tool = $(addsuffix $() $(2),$(firstword $(shell command -v $(1)) \
	$(wildcard $(dir $(shell command -v $(NVCC)))$(1))))

profile: $$(filter %/step$$(STEP),$(TIMED_STEPS))
	$(needs_step)
	$(times_need_gpu)
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/profile_step.py $< $(PROBLEM)

ptx:
	$(needs_step)
	$(needs_nvcc)
	@mkdir -p build
	$(Q)$(NVCC) $(NVCC_FLAGS) -src-in-ptx -ptx -arch=$(ONE_ARCH) $(STEP_SOURCE) -o $(LISTING).ptx
	@echo "$(LISTING).ptx has the PTX of step$(STEP), with the source lines it comes from"

sass:
	$(needs_step)
	$(needs_nvcc)
	@test -n "$(disassembler)" || { echo "make $@: neither nvdisasm nor cuobjdump found. Install one:" \
	  "both come with the CUDA Toolkit" >&2; exit 1; }
	@mkdir -p build
	$(Q)$(NVCC) $(NVCC_FLAGS) -cubin -arch=$(ONE_ARCH) $(STEP_SOURCE) -o $(LISTING).cubin
	$(Q)$(disassembler) $(LISTING).cubin > $(LISTING).sass
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/machine_code.py $(LISTING).sass
	@echo "$(LISTING).sass has the machine code of step$(STEP)"

# --- Beside the kernels of others ------------------------------------------------------------------

# What is missing is told before anything is built for it.
COMPARE = $(PYTHON) plots/compare.py $(if $(filter 1,$(QUICK)),--quick) $(COMPARE_ARGS) \
	$(BUILD) "$(RESULTS)"

.PHONY: compare
compare:
	$(call recipe_needs,$(PYTHON),python3)
	@$(COMPARE) --can-run
	@test "$(BACKEND)" = cuda || \
	  { echo "compare: times need BACKEND=cuda, and so nvcc; this is BACKEND=$(BACKEND)" >&2; exit 77; }
	@$(MAKE) all libraries
	@COMMIT="$(COMMIT)" $(COMPARE)

# --- Pictures --------------------------------------------------------------------------------------

# Where the figures go, and whose rows they are drawn from: by default the only GPU's.
PLOTS := build/plots
GPU :=
# The GPU of the README's table.
README_GPU := h200

.PHONY: plots readme layouts
plots:
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/figures.py $(if $(GPU),--gpu "$(GPU)") "$(RESULTS)" "$(PLOTS)"

readme:
	$(call recipe_needs,$(PYTHON),python3)
	$(PYTHON) plots/ladder.py README.md "$(RESULTS)/$(README_GPU)" docs/pictures

layouts:
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/layouts.py tests/data/layouts_h200.txt build/plots
