# Chapter 0: fNN_name.cu is the program fNN.

## make fNN               build one program of chapter 0; then run ./fNN (--help lists its options)
## make f12 LAYER="04 15" an attention layer with other steps, a forward and a backward one
FOUNDATION_FILES := $(wildcard steps/foundations/f*_*.cu)
FOUNDATIONS := $(foreach file,$(notdir $(FOUNDATION_FILES)),$(firstword $(subst _, ,$(file))))
foundation_source = $(wildcard steps/foundations/$(1)_*.cu)

.PHONY: foundations
foundations: $(FOUNDATIONS)

$(FOUNDATIONS): %: $(BUILD)/% build/selected
	@cp --remove-destination $< $@

# The libraries that some stages are compared with, where they are installed.
has_library = $(wildcard $(dir $(shell command -v $(NVCC)))../lib64/lib$(1).so)
FOUNDATION_LIBRARIES = $(if $(filter cuda,$(BACKEND)),$(if $(call has_library,cublas),-lcublas))

# On the CPU backend there is one build, the checking one, which calls the lab at each access.
$(FOUNDATIONS:%=$(BUILD)/foundations/%.o): private SIMT_FLAGS += $(CHECKING) -include cuda_runtime.h -iquote steps/foundations
$(FOUNDATIONS:%=$(BUILD)/foundations/%.o): $(BUILD)/foundations/%.o: $$(call foundation_source,$$*) $(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))

FOUNDATION_OBJECTS := $(patsubst steps/%.c,$(BUILD)/%.o,$(wildcard steps/foundations/*.c))
$(FOUNDATION_OBJECTS): $(BUILD)/%.o: steps/%.c $(BUILD)/flags
	$(call compile_c)
$(BUILD)/foundations/layer_reference.o: private HOST_FLAGS += $(VECTORISE)

# The linker takes of it what a program needs; the first one needs nothing.
$(BUILD)/foundations/libfoundation.a: $(FOUNDATION_OBJECTS) $(filter-out %/main.o,$(HOST_OBJECTS))
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(FOUNDATIONS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/foundations/%.o $(SIMT_OBJECTS) $(LAB_OBJECTS) \
    $(BUILD)/foundations/libfoundation.a
	$(call link_program,$(FOUNDATION_LIBRARIES))

# An attention layer is linked with a forward and a backward step, LAYER="FORWARD BACKWARD": those whose
# tables say so, or others. All their names become local but that of the descriptor.
LAYERS := $(call short_names,$(shell grep -l '"layer_reference.h"' $(FOUNDATION_FILES)))
LAYER ?= $(patsubst step%,%,$(call short_names,$(shell grep -l '^\[layer\]' steps/*.toml)))
layer_step = $(filter $(2),$(word $(1),$(LAYER:%=step%)))
LAYER_STEPS := $(call layer_step,1,$(FORWARD_STEPS)) $(call layer_step,2,$(call short_names,$(BACKWARD_STEPS)))
LAYER_OBJECTS := $(if $(word 2,$(LAYER_STEPS)),$(join $(BUILD)/foundations/forward_ $(BUILD)/foundations/backward_,\
	$(foreach step,$(LAYER_STEPS),$(call stem_of,$(step)).o)))
step_of_layer = $(BUILD)/$(if $(filter cpu,$(BACKEND)),checked/$(1).all.o,steps/$(1).o)

define as_part_of_layer
@mkdir -p $(@D)
$(Q)$(LD) -r --force-group-allocation $< -o $@
$(Q)$(OBJCOPY) --redefine-sym step=$(1)_step --keep-global-symbol=$(1)_step $@
endef

$(BUILD)/foundations/forward_%.o: $$(call step_of_layer,$$*)
	$(call as_part_of_layer,forward)
$(BUILD)/foundations/backward_%.o: $$(call step_of_layer,$$*)
	$(call as_part_of_layer,backward)

$(BUILD)/foundations/layer: FORCE
	@test -n "$(LAYER_OBJECTS)" || \
	  { echo 'LAYER="$(LAYER)": must be a forward and a backward step, such as "04 15"' >&2; exit 2; }
	@$(call write_if_changed,$(LAYER))

$(LAYERS:%=$(BUILD)/%): $(LAYER_OBJECTS) $(BUILD)/foundations/layer
