# Programs whose results are compared with a GPU's.

## make lab-counts        programs that write down the lab's counts, to be compared with Nsight Compute

# The contents of a GPU's registers after ldmatrix and mma, to test the layouts of the CPU backend;
# and, on a GPU, the counts of cp.async.
$(BUILD)/gpu/%.o: tests/gpu/%.cu $$(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))

$(BUILD)/layouts $(BUILD)/layouts_hopper $(BUILD)/layouts_cluster $(BUILD)/wgmma_waits $(if $(filter cuda,$(BACKEND)),$(BUILD)/copies): $(BUILD)/%: $(BUILD)/gpu/%.o $(SIMT_OBJECTS)
	$(call link_program)

# The lab's counts of the same: cp.async alone, and every step.
LAB_COUNTERS := $(if $(filter cpu,$(BACKEND)),$(STEPS:%=$(BUILD)/counts/%) $(BUILD)/counts/copies)
.PHONY: lab-counts
lab-counts: $(LAB_COUNTERS)

$(BUILD)/gpu/%.o: tests/gpu/%.c $(BUILD)/flags
	$(call compile_c)

$(BUILD)/gpu/copies.o: private SIMT_FLAGS += $(CHECKING)

COUNT := -Wl,--wrap=lab_take_results

$(BUILD)/counts/copies: $(BUILD)/gpu/copies.o $(BUILD)/gpu/lab_counts.o $(BUILD)/plain/libhost.a \
    $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,$(COUNT))

$(STEPS:%=$(BUILD)/counts/%): $(BUILD)/counts/%: $(BUILD)/gpu/lab_counts.o $$(call step_object,$$*) \
    $$(call checked_object,$$*) $$(call linked_objects,$$*) $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,$(COUNT))
