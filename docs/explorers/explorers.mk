# The data of the timeline: a program for each step, which prints the events of a warp. See timeline.h.

TIMELINE_STEPS := $(call steps_with,timeline = true)

ifeq ($(BACKEND),cpu)

TIMELINE_PROGRAMS := $(TIMELINE_STEPS:%=$(BUILD)/explorers/timeline_%)
TIMELINE_OBJECTS := $(patsubst docs/explorers/%.c,$(BUILD)/explorers/%.o,$(wildcard docs/explorers/timeline_*.c))
# Functions that the linker replaces by those of timeline_record.c.
TIMELINE_WRAPS := simt_copy_async_16 simt_commit_group simt_wait_group simt_barrier simt_ldmatrix \
	simt_stmatrix simt_mma simt_shuffle simt_vote exp2f simt_mbarrier_arrive simt_mbarrier_wait \
	simt_mbarrier_arrive_at simt_mbarrier_wait_cluster simt_bulk_send simt_tensor_load \
	simt_tensor_store simt_bulk_wait simt_wgmma simt_wgmma_commit simt_wgmma_wait \
	simt_named_barrier simt_atomic_32 simt_load_acquire_32

$(TIMELINE_OBJECTS): $(BUILD)/explorers/%.o: docs/explorers/%.c $(BUILD)/flags
	$(call compile_c,-Idocs/explorers)

# The checking build is recorded; the plain one is there because the host library refers to it.
$(TIMELINE_PROGRAMS): $(BUILD)/explorers/timeline_%: $(TIMELINE_OBJECTS) $$(call step_object,$$*) \
    $$(call checked_object,$$*) $(BUILD)/plain/libhost.a $(SIMT_OBJECTS)
	$(call link_program,$(TIMELINE_WRAPS:%=-Wl$(comma)--wrap=%))

$(BUILD)/explorers/timeline.json: $(TIMELINE_PROGRAMS)
	$(Q){ echo '{"steps": ['; before=; \
	  for program in $^; do echo "$$before"; $$program || exit 1; before=,; done; echo ']}'; } > $@

$(EXPLORERS)/data/timeline.js: docs/explorers/pack.py $(BUILD)/explorers/timeline.json
	@mkdir -p $(@D)
	$(Q)$(PYTHON) $^ > $@

endif
