# What is measured on a GPU, and what is made of it. Included by the Makefile; docs/measuring.md explains.

RESULTS := plots/results
QUICK ?= 0
$(if $(filter x0 x1,$(subst $() ,,x$(QUICK))),,$(error QUICK=$(QUICK): must be 0 or 1))

.PHONY: sweep ceilings profile sass ptx

# --- Times ------------------------------------------------------------------------------------------

# Nothing is compiled for a backend whose times would mean nothing.
TIMED_STEPS := $(if $(filter cuda,$(BACKEND)),$(STEPS:%=$(BUILD)/%))
times_need_gpu = @test "$(BACKEND)" = cuda || \
	{ echo "make $@: times need a GPU, and this is BACKEND=$(BACKEND)" >&2; exit 1; }

sweep: $(TIMED_STEPS)
	$(times_need_gpu)
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/sweep.py $(if $(filter 1,$(QUICK)),--quick) $(BUILD) $(RESULTS)

ceilings: $(firstword $(TIMED_STEPS))
	$(times_need_gpu)
	$(call recipe_needs,$(PYTHON),python3)
	@$(PYTHON) plots/ceilings.py $< $(RESULTS)
