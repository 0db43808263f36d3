# How a step becomes a program: with nvcc, or as C++ on the CPU backend.

step_object = $(BUILD)/steps/$(call stem_of,$(1)).o
# Compiled once more on the CPU backend, for --report.
checked_object = $(if $(filter cpu,$(BACKEND)),$(BUILD)/checked/$(call stem_of,$(1)).o)

STEP_PROGRAMS := $(STEPS:%=$(BUILD)/%)

# Some programs are linked with other steps, of which all names become local but that of the descriptor. Those
# of backward steps with a forward step, which computes O and LSE: the one whose table says so, or for steps
# that take masks that of `masked_forward`. Those of a step that chooses among others, and declares them, with
# these: CHOSEN has the sections of their tables.
BACKWARD_STEPS := $(shell grep -lE '^ *\.backward = ' $(STEP_FILES))
MASKED_STEPS := $(shell grep -lE '^ *\.block_masks = ' $(STEP_FILES))
CHOOSING_STEPS := $(shell grep -l '^extern const Step' $(STEP_FILES))
CHOSEN := few_rows many_rows e4m3_cache
linked_as = $(BUILD)/linked/$(basename $(notdir $(shell grep -l '^\[$(1)\]' steps/*.toml))).o
FORWARD_OBJECT := $(call linked_as,forward)
MASKED_FORWARD_OBJECT := $(call linked_as,masked_forward)
CHOSEN_OBJECTS := $(foreach name,$(CHOSEN),$(call linked_as,$(name)))
linked_to = $(if $(filter $(BACKWARD_STEPS),$(1)),$(if $(filter $(MASKED_STEPS),$(1)),$(MASKED_FORWARD_OBJECT),$(FORWARD_OBJECT)))$(if $(filter $(CHOOSING_STEPS),$(1)),$(CHOSEN_OBJECTS))
linked_objects = $(call linked_to,$(call sources_of,$(1)))
short_names = $(foreach file,$(notdir $(1)),$(firstword $(subst _, ,$(file))))
DECODE_STEPS := $(shell grep -lE '^ *\.decode = ' $(STEP_FILES))
# What calls Step::forward.
FORWARD_STEPS := $(filter-out $(call short_names,$(BACKWARD_STEPS) $(DECODE_STEPS)),$(STEPS))

# Without a GPU, too, `make ptx` and `make sass` call nvcc.
NVCC_FLAGS = -std=c++17 -g $(if $(filter 1,$(DEBUG)),-G,-lineinfo) -Icommon \
	-Xcompiler $(subst $(space),$(comma),$(strip $(WARNINGS) $(PIC))) \
	$(if $(filter 1,$(WERROR)),-Werror all-warnings)

# Steps of these instructions run on no other GPU: code for sm_90 will do, where it is asked for.
HOPPER_FILES := $(shell grep -lE 'device/(ptx_hopper|wgmma_tile|decode_wide)' $$(grep -lE 'wgmma|decode_wide' $(STEP_FILES)))
archs_of = $(or $(if $(filter $(1),$(HOPPER_FILES)),$(filter sm_90,$(ARCH))),$(if $(FAST_HALF_STEP),$(lastword $(ARCH))),$(ARCH))
# It is that for sm_90a, which has all instructions of these GPUs.
machine_arch = $(patsubst sm_90,sm_90a,$(1))

ifeq ($(BACKEND),cuda)

# Machine code for each architecture, and PTX of the newest so that later GPUs run too: PTX for sm_90a would
# run nowhere else.
newest = $(patsubst sm_%,compute_%,$(lastword $(or $(filter-out %a %f,$(1)),$(1))))
gencode = $(foreach a,$(sort $(call machine_arch,$(1))),-gencode arch=$(a:sm_%=compute_%)$(comma)code=$(a)) \
	$(if $(filter 1,$(FAST)),,-gencode arch=$(call newest,$(1))$(comma)code=$(call newest,$(1)))

# FAST=1 only finds out whether kernels compile, so there is no PTX. Steps with a letter are compiled for the
# newest architecture alone, since only headers ask which it is, most of which they share with other steps.
# Steps with wgmma are compiled in full, for ptxas's remarks.
FAST_HALF_STEP = $(and $(filter 1,$(FAST)),$(filter $<,$(HALF_STEPS)))
HALF_STEPS := $(wildcard steps/step[0-9][0-9][a-z]_*.cu)
fast_compile = $(if $(filter 1,$(FAST)),$(if $(filter $<,$(HOPPER_FILES)),,--Ofast-compile=max))

define compile_cu
@mkdir -p $(@D)
$(call say,NVCC,$<)
$(Q)$(NVCC) $(NVCC_FLAGS) $(fast_compile) $(call gencode,$(1)) -MMD -MP -c $< -o $@ $(refuse_slow_wgmma)
endef

# ptxas only remarks that it runs wgmma one after the other, or ignores setmaxnreg (C7508 to C7515). With
# WERROR=1 that is an error, too.
refuse_slow_wgmma = $(if $(filter 1,$(WERROR)),>$@.said 2>&1; status=$$?; cat $@.said >&2; \
	! grep -qE '\(C75(0[89]|1[0-5])\)' $@.said && exit $$status)

LINK := $(NVCC)
LINK_FLAGS := -cudart static -Xcompiler -fopenmp -lm

else

LINK := $(CXX)
LINK_FLAGS := -fopenmp -lpthread -lm

# Steps on tensor cores leave the arithmetic to the runtime, which is optimised, and one query of decode has
# little of it: they take no longer with -Og than with -O2, which g++ takes twice as long for. `make lint`
# uses -O2, for its warnings.
LITTLE_ARITHMETIC := $(shell grep -lE 'device/(ptx|backward_rows|decode)' $(STEP_FILES))
STEP_OPTIMISE := $(if $(filter 0,$(DEBUG)),-Og)
$(LITTLE_ARITHMETIC:steps/%.cu=$(BUILD)/steps/%.o): private SIMT_FLAGS += $(STEP_OPTIMISE)

# All names of the checking build become local but that of its descriptor, so that both builds of a
# step fit into one program.
$(FULL_NAMES:%=$(BUILD)/checked/%.all.o): $(BUILD)/checked/%.all.o: steps/%.cu $(REWRITER) $(BUILD)/flags
	$(compile_cu)

$(FULL_NAMES:%=$(BUILD)/checked/%.all.o): private SIMT_FLAGS += $(CHECKING)

$(CHOOSING_STEPS:steps/%.cu=$(BUILD)/checked/%.o): $(CHOSEN_OBJECTS:$(BUILD)/linked/%=$(BUILD)/checked/linked/%)

$(FULL_NAMES:%=$(BUILD)/checked/%.o): %.o: %.all.o
	$(Q)$(LD) -r --force-group-allocation $^ -o $@
	$(Q)$(OBJCOPY) --redefine-sym step=step_checked --keep-global-symbol=step_checked $@

$(BUILD)/checked/linked/%.o: $(BUILD)/checked/%.all.o
	$(link_as)

endif

ifneq ($(AMBIGUOUS),)
$(foreach folder,steps checked,$(AMBIGUOUS:%=$(BUILD)/$(folder)/%.o)): FORCE
	@echo "$(call two_files,$(basename $(@F)))" >&2; exit 2
endif

# Links objects and libraries, with these flags beside the usual ones.
define link_program
@mkdir -p $(@D)
$(call say,LINK,$@)
$(Q)$(LINK) $(filter %.o %.a,$^) -o $@ $(1) $(LINK_FLAGS)
endef

$(FULL_NAMES:%=$(BUILD)/steps/%.o): $(BUILD)/steps/%.o: steps/%.cu $(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(call archs_of,$<))

$(STEP_PROGRAMS) $(FULL_NAMES:%=$(BUILD)/%): $(BUILD)/%: $$(call step_object,$$*) \
    $$(call checked_object,$$*) $$(call linked_objects,$$*) $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program)

$(BUILD)/linked/%.o: $(BUILD)/steps/%.o
	$(link_as)

define link_as
@mkdir -p $(@D)
$(Q)$(LD) -r --force-group-allocation $< -o $@
$(Q)$(OBJCOPY) --redefine-sym step=$(NAME) --keep-global-symbol=$(NAME) $@
endef

define name_linked
$(call linked_as,$(1)) $(patsubst $(BUILD)/linked/%,$(BUILD)/checked/linked/%,$(call linked_as,$(1))): private NAME := $(1)_step
endef
$(foreach name,forward masked_forward $(CHOSEN),$(eval $(call name_linked,$(name))))
