# What is measured on a GPU, and what is made of it. Included by the Makefile; docs/measuring.md explains.

RESULTS := plots/results
QUICK ?= 0
$(if $(filter x0 x1,$(subst $() ,,x$(QUICK))),,$(error QUICK=$(QUICK): must be 0 or 1))

## make ceilings          measure what this GPU can do at best, for the reports to compare with
## make compare           measure the steps beside PyTorch's kernels on a GPU (minutes; QUICK=1: one)
## make profile           count one pass of STEP=03 with Nsight Compute (GPU); PROBLEM="-n 1024 -d 64": another problem
## make sass              the machine code of STEP=03, and what it is made of (nvcc, no GPU)
## make ptx               the PTX of STEP=03
## make readme            rewrite the table of README.md, and its picture, from plots/results
## make layouts           draw the registers of ldmatrix and mma, as a GPU filled them, into build/plots
## make real-input        run every step on tests/data and on random inputs, for docs/real-input.md
## make libraries         every step as a shared library, for callers in Python
.PHONY: sweep ceilings profile sass ptx lab real-input libraries
COMPILE_NOTHING += compare layouts plots readme

# --- Times ------------------------------------------------------------------------------------------

# Nothing is compiled for a backend whose times would mean nothing.
TIMED_STEPS := $(if $(filter cuda,$(BACKEND)),$(STEP_PROGRAMS))
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
STEP_SOURCE = $(call source_of,$(STEP_NAME))
# The GPU's architecture, or the newest of those that are built for.
ONE_ARCH := $(lastword $(ARCH))
LISTING = build/step$(STEP)_$(ONE_ARCH)

needs_nvcc = @command -v $(NVCC) >/dev/null || { echo "make $@: $(NVCC) not found. Install it:" \
	"the CUDA Toolkit 12.4 or later from developer.nvidia.com/cuda-downloads" >&2; exit 1; }
# Toolkits may come in parts, and both of these print machine code; the first names source lines too.
disassembler = $(or $(call tool,nvdisasm,-c -g),$(call tool,cuobjdump,-sass))
tool = $(addsuffix $() $(2),$(firstword $(shell command -v $(1)) \
	$(wildcard $(dir $(shell command -v $(NVCC)))$(1))))

profile: $$(filter %/$$(STEP_NAME),$(TIMED_STEPS))
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

# --- Steps as shared libraries -----------------------------------------------------------------------

# For callers in Python, from the objects of the programs. Two of them in one
# process do not mix.
LIBRARIES := $(STEPS:%=$(BUILD)/lib%.so)

libraries: $(LIBRARIES)

$(BUILD)/plots/%.o: plots/%.c $(BUILD)/flags
	$(call compile_c,$(PIC))

# The simulated runtime stays visible: callers need its cudaMalloc.
$(LIBRARIES): $(BUILD)/lib%.so: $$(call step_object,$$*) $(BUILD)/plots/step_library.o $(SIMT_OBJECTS)
	$(call say,LINK,$@)
ifeq ($(BACKEND),cuda)
	$(Q)$(NVCC) -shared $^ -o $@ -cudart static -Xlinker -Bsymbolic -Xlinker --exclude-libs=ALL
else
	$(Q)$(CXX) -shared $^ -o $@ -Wl,-Bsymbolic -lpthread -lm
endif

# --- On the CPU backend -----------------------------------------------------------------------------

# What real input does to the steps: measures anew, writes the tables of docs/real-input.md, draws.
REAL_INPUT := plots/results/real_input

real-input:
	@$(PYTHON) -c 'import numpy, matplotlib' 2>/dev/null || \
	  { echo "real-input: Python needs numpy and matplotlib. Install them: make deps"; exit 1; }
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%)
	$(PYTHON) plots/real_input/measure.py $(REAL_INPUT)
	$(PYTHON) plots/real_input/tables.py docs/real-input.md $(REAL_INPUT)
	$(PYTHON) plots/real_input/figure.py $(REAL_INPUT) build/plots

# What the lab of the CPU backend counts of all steps, side by side; of one shape in docs/lab.md too.
lab:
	@$(PYTHON) -c 'import numpy' 2>/dev/null || \
	  { echo "lab: Python needs numpy. Install it: make deps"; exit 1; }
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%)
	$(PYTHON) plots/lab.py build/lab.md docs/lab.md

