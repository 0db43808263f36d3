# Small faults in the kernels: docs/mutants.md.

## make mutants           do the checks notice every small fault in a kernel? STEP=03 for one step, SAMPLE=200 of its mutants, MUTANT_JOBS=8 at a time
.PHONY: mutants

MUTANTS := build/mutants
MUTANT_OPTIONS = $(STEP:%=--step=step%) $(if $(ONLY),--only='$(ONLY)') $(SAMPLE:%=--sample=%) \
	$(if $(SUMMARY),--summary=$(SUMMARY))

mutants: $(REWRITER) $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS) $(BUILD)/tests/step_under_test.o \
    $(BUILD)/tests/decode_under_test.o $(FORWARD_OBJECT) $(MASKED_FORWARD_OBJECT) $(CHOSEN_OBJECTS)
	@test "$(BACKEND)" = cpu || { echo "make mutants: needs BACKEND=cpu"; exit 1; }
	$(needs_packages)
	@COMMIT="$(COMMIT)" JOBS=$(MUTANT_JOBS) REWRITE=$(REWRITER) LINK="$(LINK) $(LINK_FLAGS)" \
	  COMPILE="$(CXX) $(SIMT_FLAGS) $(CHECKING)" MAIN_OBJECT=$(BUILD)/host/main.o \
	  UNDER_TEST_OBJECT=$(BUILD)/tests/step_under_test.o \
	  DECODE_UNDER_TEST_OBJECT=$(BUILD)/tests/decode_under_test.o \
	  OBJECTS="$(filter-out %/main.o %_under_test.o,$(filter %.o,$^))" \
	  nice $(PYTHON) -m tests.mutants.run $(MUTANTS) $(MUTANT_OPTIONS)
