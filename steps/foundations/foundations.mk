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

$(BUILD)/foundations/foundation.o: steps/foundations/foundation.c $(BUILD)/flags
	$(call compile_c)

# The linker takes of it what a program needs; the first one needs nothing.
$(BUILD)/foundations/libfoundation.a: $(BUILD)/foundations/foundation.o $(filter-out %/main.o,$(HOST_OBJECTS))
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(FOUNDATIONS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/foundations/%.o $(SIMT_OBJECTS) $(LAB_OBJECTS) \
    $(BUILD)/foundations/libfoundation.a
	$(call link_program,$(FOUNDATION_LIBRARIES))
