# Measurements and figures, for the Makefile; see docs/measuring.md and docs/figures.md.

RESULTS := plots/results
QUICK ?= 0
$(if $(filter x0 x1,$(subst $() ,,x$(QUICK))),,$(error QUICK=$(QUICK): must be 0 or 1))

## make bench QUICK=1     three cases in half a minute; ONLY="D=128 causal": those with these words
## make bench BACKWARD=1  the backward steps, in place of the others
## make bench DECODE=1    the decode steps, likewise
## make builds OLD=DIR    is any step slower than in DIR, which has libstepNN.so of another commit? (GPU)
## make ceilings          measure what this GPU can do at best, for the reports to compare with
## make variants          what each idea of a step gives: measures the variants of steps in steps/variants (GPU)
## make walk              the stages of one kernel that docs/profiling.md leads through
## make train TEXT=FILE   train a small language model on a text, by the steps and by PyTorch's attention (GPU)
## make packed TEXT=FILE  the same on whole documents: packed, with a mask, and padded (GPU)
## make generate          tokens by the decode steps in a model of transformers; WEIGHTS=FILE.gguf (GPU)
## make model STEP=10c    what a step gives a whole model, and attention's share of the time (GPU)
## make profile           count one pass of STEP=03 with Nsight Compute (GPU); PROBLEM="-n 1024 -d 64": another problem
## make sass              the machine code of STEP=03, and what it is made of (nvcc, no GPU)
## make ptx               the PTX of STEP=03
## make readme            rewrite the tables of README.md and docs/index.md, the figures, and links to the repository
## make pictures          draw the pictures of the pages on the steps, into docs/pictures
## make real-input        run every step on tests/data and on random inputs, for docs/real-input.md
## make libraries         every step as a shared library, for callers in Python
.PHONY: libraries bench ceilings builds variants train packed generate model profile sass ptx plots readme pictures \
	real-input lab
COMPILE_NOTHING += pictures plots readme

needs_packages = @$(PYTHON) -c 'import numpy, matplotlib' 2>/dev/null || \
	{ echo "make $@: Python needs numpy and matplotlib. Install them: make deps" >&2; exit 1; }

# --- Steps as shared libraries, for callers in Python, from the objects of the programs --------------

LIBRARIES := $(STEPS:%=$(BUILD)/lib%.so)
VARIANTS := $(patsubst steps/variants/%.patch,%,$(wildcard steps/variants/*.patch))
VARIANT_LIBRARIES := $(VARIANTS:%=$(BUILD)/variants/lib%.so)
STAGES := $(patsubst steps/%.patch,$(BUILD)/%,$(wildcard steps/walk/*.patch))
PATCHED := $(VARIANTS:%=$(BUILD)/variants/%) $(STAGES)
linked_of_patched = $(call linked_objects,$(firstword $(subst _, ,$(notdir $(1)))))

libraries: $(LIBRARIES)

$(BUILD)/plots/%.o: plots/%.c $(BUILD)/flags
	$(call compile_c,$(PIC))

$(BUILD)/python/%.o: common/python/%.c $(BUILD)/flags
	$(call compile_c,$(PIC))

$(LIBRARIES): $(BUILD)/lib%.so: $$(call step_object,$$*) $$(call linked_objects,$$*)
$(VARIANT_LIBRARIES): $(BUILD)/variants/lib%.so: $(BUILD)/variants/%.o $$(call linked_of_patched,$$*)

# The simulated runtime stays visible: callers need its cudaMalloc.
$(LIBRARIES) $(VARIANT_LIBRARIES): $(BUILD)/python/library.o $(OF_LIBRARIES) $(SIMT_OBJECTS)
	$(call say,LINK,$@)
ifeq ($(BACKEND),cuda)
	$(Q)$(NVCC) -shared $^ -o $@ -cudart static -Xlinker -Bsymbolic -Xlinker --exclude-libs=ALL
else
	$(Q)$(CXX) -shared $^ -o $@ -Wl,-Bsymbolic -lpthread -lm
endif

# --- Times ------------------------------------------------------------------------------------------

# Nothing is compiled for the CPU backend, whose times say nothing about a GPU.
ifeq ($(BACKEND),cuda)
BENCH_KIND := $(if $(filter 1,$(BACKWARD)),backward,$(if $(filter 1,$(DECODE)),decode,forward))
TIMED := $(if $(filter backward,$(BENCH_KIND)),$(call short_names,$(BACKWARD_STEPS)),$(if \
	$(filter decode,$(BENCH_KIND)),$(call short_names,$(DECODE_STEPS)),$(STEPS)))
TIMED_STEPS := $(TIMED:%=$(BUILD)/%)
TIMED_LIBRARIES := $(TIMED:%=$(BUILD)/lib%.so)
endif
times_need_gpu = @test "$(BACKEND)" = cuda || \
	{ echo "make $@: times need a GPU, and this is BACKEND=$(BACKEND); BACKEND=cuda, where there is one" >&2; exit 77; }

# A Python with NumPy and, for the baselines, PyTorch, which is rarely in .venv.
BENCH_PYTHON ?= python3

bench: $(TIMED_STEPS) $(TIMED_LIBRARIES)
	$(times_need_gpu)
	@$(BENCH_PYTHON) -m plots.bench.run $(if $(filter 1,$(QUICK)),--quick) \
	  --kind $(BENCH_KIND) $(BUILD) "$(RESULTS)" \
	  $(if $(ONLY),--only $(ONLY))

ceilings: $(firstword $(TIMED_STEPS))
	$(times_need_gpu)
	@$< --ceilings --json "$(RESULTS)/ceilings.jsonl"

builds: $(TIMED_STEPS) $(TIMED_LIBRARIES)
	$(times_need_gpu)
	@ls $(OLD)/libstep*.so >/dev/null && $(BENCH_PYTHON) -m plots.bench.builds "$(OLD)" $(BUILD)

# Other forms of steps, by patches: programs, and libraries of the variants, which `make variants` measures
# beside the steps.
$(PATCHED:%=%.cu): $(BUILD)/%.cu: steps/%.patch steps/exercises/patches.py $(STEP_FILES) $(wildcard steps/walk/*)
	@mkdir -p $(@D)
	$(Q)$(PYTHON) steps/exercises/patches.py $< > $@

$(PATCHED:%=%.o): %.o: %.cu $(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))

$(PATCHED): %: %.o $$(call linked_of_patched,$$*) $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,$(SAME_STEP))

ifeq ($(BACKEND),cpu)
$(PATCHED:%=%.o): private SIMT_FLAGS += $(CHECKING)
endif

.PHONY: walk
walk: $(STAGES)

variants: $(TIMED_STEPS) $(TIMED_LIBRARIES) $(if $(filter cuda,$(BACKEND)),$(VARIANT_LIBRARIES))
	$(times_need_gpu)
	@$(BENCH_PYTHON) -m plots.bench.variants $(BUILD) $(COMMIT)

train packed:
	$(times_need_gpu)
	@test -f "$(TEXT)" || { echo "make $@: TEXT=$(TEXT): must be a file with a text to learn" >&2; exit 2; }
	@$(BENCH_PYTHON) -m plots.tools.$@ "$(TEXT)"

generate:
	$(times_need_gpu)
	@$(BENCH_PYTHON) -m plots.tools.generate $(if $(WEIGHTS),--weights "$(WEIGHTS)")

model:
	$(times_need_gpu)
	@test -n "$(STEP)" || { echo "make $@: STEP= names the step, as in STEP=10c" >&2; exit 2; }
	@$(BENCH_PYTHON) -m plots.tools.model $(STEP)

# --- What a profiler and the compiler report of one step ----------------------------------------------

PROBLEM ?= -b 4 -H 16 -n 4096 -d 128
STEP_SOURCE = $(call source_of,$(STEP_NAME))
# The newest that the step is built for.
ONE_ARCH = $(lastword $(call archs_of,$(STEP_SOURCE)))
LISTED = -arch=$(call machine_arch,$(ONE_ARCH)) $(STEP_SOURCE)
LISTING = build/step$(STEP)_$(ONE_ARCH)

needs_nvcc = @command -v $(NVCC) >/dev/null || { echo "make $@: $(NVCC) not found. Install it:" \
	"the CUDA Toolkit 12.4 or later from developer.nvidia.com/cuda-downloads" >&2; exit 1; }
# Either tool prints machine code, and a toolkit may lack one; nvdisasm also names source lines.
disassembler = $(or $(call tool,nvdisasm,-c -g),$(call tool,cuobjdump,-sass))
tool = $(addsuffix $() $(2),$(firstword $(shell command -v $(1)) \
	$(wildcard $(dir $(shell command -v $(NVCC)))$(1))))

profile: $$(filter %/$$(STEP_NAME),$(TIMED_STEPS))
	$(needs_step)
	$(times_need_gpu)
	@$(PYTHON) -m plots.tools.profile $< $(PROBLEM)

ptx:
	$(needs_step)
	$(needs_nvcc)
	@mkdir -p build
	$(Q)$(NVCC) $(NVCC_FLAGS) -src-in-ptx -ptx $(LISTED) -o $(LISTING).ptx
	@echo "$(LISTING).ptx has the PTX of step$(STEP), with the source lines it comes from"

sass:
	$(needs_step)
	$(needs_nvcc)
	@test -n "$(disassembler)" || { echo "make $@: neither nvdisasm nor cuobjdump found. Install one:" \
	  "both come with the CUDA Toolkit" >&2; exit 1; }
	@mkdir -p build
	$(Q)$(NVCC) $(NVCC_FLAGS) -cubin $(LISTED) -o $(LISTING).cubin
	$(Q)$(disassembler) $(LISTING).cubin > $(LISTING).sass
	@$(PYTHON) -m plots.tools.machine_code $(LISTING).sass
	@echo "$(LISTING).sass has the machine code of step$(STEP)"

# --- Pictures and pages ------------------------------------------------------------------------------

# The directory of the figures, and the GPU whose records they show. The README shows the H200's.
PLOTS := build/plots
GPU := h200

plots:
	$(needs_packages)
	@$(PYTHON) -m plots.figures.all "$(RESULTS)/$(GPU)" "$(PLOTS)"

readme:
	$(needs_packages)
	$(PYTHON) -m plots.figures.readme . "$(RESULTS)/h200"

# The steps whose tables have a line.
steps_with = $(sort $(foreach file,$(shell grep -lx '$(1)' steps/*.toml),$(firstword $(subst _, ,$(notdir $(file))))))

# A step without the rescaling of O, for a map of what that does.
BROKEN_STEP := $(call steps_with,draw = "errors")
BROKEN := build/pictures/$(BROKEN_STEP)_broken
ifeq ($(BACKEND),cpu)
$(BROKEN).cu: $(firstword $(call sources_of,$(BROKEN_STEP))) plots/figures/pictures_numbers.py
	@mkdir -p $(@D)
	$(Q)$(PYTHON) -m plots.figures.pictures --broken $< $@

$(BROKEN).o: $(BROKEN).cu $(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))

$(BROKEN): $(BROKEN).o $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program)

-include $(wildcard $(BROKEN).d)
endif

# Programs that write down what a thread block of a Hopper step does.
RECORDERS := $(patsubst %,$(BUILD)/events/%,$(call steps_with,\[roles\]))
ifeq ($(BACKEND),cpu)
# Functions that the linker replaces by those of record_events.c.
RECORDED := mbarrier_init mbarrier_arrive mbarrier_wait tensor_load tensor_store bulk_commit bulk_wait \
	wgmma wgmma_commit wgmma_wait named_barrier shuffle vote

$(RECORDERS): $(BUILD)/events/%: $$(call step_object,$$*) $$(call checked_object,$$*) \
    $(BUILD)/plots/figures/record_events.o $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,$(RECORDED:%=-Wl$(comma)--wrap=simt_%))
endif

pictures:
	$(needs_packages)
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%) $(RECORDERS:$(BUILD)/%=build/cpu/%) $(BROKEN)
	$(PYTHON) -m plots.figures.pictures build/cpu $(BROKEN) docs/pictures

REAL_INPUT := $(RESULTS)/real_input
real-input:
	$(needs_packages)
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%)
	$(PYTHON) -m plots.tools.real_input.measure $(REAL_INPUT)
	$(PYTHON) -m plots.tools.real_input.e4m3 $(REAL_INPUT)
	$(PYTHON) -m plots.tools.real_input.tables docs/real-input.md $(REAL_INPUT)

lab:
	$(needs_packages)
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%)
	$(PYTHON) -m plots.tools.lab build/lab.md docs/lab.md
