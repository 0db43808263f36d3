# Chapter 0: fNN_name.cu is the program fNN.

## make fNN               build one program of chapter 0; then run ./fNN (--help lists its options)
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

# The attention layer is linked with a forward and a backward step, LAYER="FORWARD BACKWARD": those whose
# tables say so, or others. All their names become local but that of the descriptor.
LAYER ?= $(patsubst step%,%,$(call short_names,$(shell grep -l '^\[layer\]' steps/*.toml)))
layer_step = $(or $(filter $(2),$(word $(1),$(LAYER:%=step%))),\
	$(error LAYER="$(LAYER)": must be a forward and a backward step, such as "04 15"))
layer_object = $(BUILD)/foundations/$(1)_$(call stem_of,$(2)).o
LAYER_OBJECTS := $(call layer_object,forward,$(call layer_step,1,$(FORWARD_STEPS))) \
	$(call layer_object,backward,$(call layer_step,2,$(call short_names,$(BACKWARD_STEPS))))
step_of_layer = $(BUILD)/$(if $(filter cpu,$(BACKEND)),checked/$(1).all.o,steps/$(1).o)
role_of = $(firstword $(subst _, ,$(notdir $(1))))

$(LAYER_OBJECTS): $$(call step_of_layer,$$(patsubst $$(call role_of,$$@)_%.o,%,$$(@F)))
	@mkdir -p $(@D)
	$(Q)$(LD) -r --force-group-allocation $< -o $@
	$(Q)$(OBJCOPY) --redefine-sym step=$(call role_of,$@)_step --keep-global-symbol=$(call role_of,$@)_step $@

$(BUILD)/foundations/layer: FORCE
	@$(call write_if_changed,$(LAYER))

$(BUILD)/f12: $(LAYER_OBJECTS) $(BUILD)/foundations/layer
