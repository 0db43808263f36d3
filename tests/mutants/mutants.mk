# Small faults in the kernels, and orders of their threads: docs/mutants.md.

## make mutants           do the checks notice every small fault in a kernel? STEP=03 for one step, MUTANT_JOBS=8 at a time
## make lab-orders        right kernels have no findings in 22 orders of their threads (many minutes)
.PHONY: mutants lab-orders

MUTANTS := build/mutants
MUTANT_OPTIONS = $(STEP:%=--step=step%) $(if $(ONLY),--only='$(ONLY)') \
	$(if $(SUMMARY),--summary=$(SUMMARY))

mutants: $(REWRITER) $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS) $(BUILD)/tests/step_under_test.o
	@test "$(BACKEND)" = cpu || { echo "make mutants: needs BACKEND=cpu"; exit 1; }
	$(call recipe_needs,$(PYTHON),python3)
	@COMMIT="$(COMMIT)" JOBS=$(MUTANT_JOBS) REWRITE=$(REWRITER) LINK="$(LINK) $(LINK_FLAGS)" \
	  COMPILE="$(CXX) $(SIMT_FLAGS) $(CHECKING)" MAIN_OBJECT=$(BUILD)/host/main.o \
	  UNDER_TEST_OBJECT=$(BUILD)/tests/step_under_test.o \
	  OBJECTS="$(filter-out %/main.o %/step_under_test.o,$(filter %.o,$^))" \
	  nice $(PYTHON) -m tests.mutants.run $(MUTANTS) $(MUTANT_OPTIONS)

lab-orders: $(STEP_PROGRAMS)
	@test "$(BACKEND)" = cpu || { echo "make lab-orders: needs BACKEND=cpu"; exit 1; }
	@$(PYTHON) -c 'import numpy, pytest' 2>/dev/null || \
	  { echo "lab-orders: Python needs numpy and pytest. Install them: make deps"; exit 1; }
	nice $(PYTHON) -m tests.mutants.orders $(BUILD) build/orders $(if $(STEP),--step=step$(STEP))
