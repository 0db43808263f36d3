# Unit tests in C: always on the CPU backend, so that they need no toolkit.

## make test-unit         unit tests, under the address and undefined-behaviour sanitizers
## make test-valgrind     the unit tests of the host code under valgrind (minutes)
.PHONY: test-unit test-valgrind

# The check for cmocka runs when the tests are built, not when the Makefile is read.
hash := \#
HAVE_CMOCKA = $(shell printf '$(hash)include <%s>\n' stdarg.h stddef.h setjmp.h stdint.h cmocka.h | \
	$(CC) -fsyntax-only -x c - 2>/dev/null && echo yes)
NO_CMOCKA = cmocka not found. Install it: sudo apt-get install libcmocka-dev
needs_cmocka = @test "$(HAVE_CMOCKA)" = yes || { echo "$(NO_CMOCKA)" >&2; exit 1; }

ifeq ($(BACKEND),cuda)

test-unit:
	@if [ "$(HAVE_CMOCKA)" = yes ]; then $(MAKE) BACKEND=cpu test-unit; \
	else echo "test-unit: skipped: $(NO_CMOCKA)"; fi

test-valgrind:
	@echo "make test-valgrind: needs BACKEND=cpu" >&2; exit 1

else

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
UNIT := $(BUILD)/unit
# The tests in the folders of tests/unit whose names begin with a word.
tests_named = $(patsubst tests/unit/%$(2),%,$(wildcard tests/unit/*/$(1)_*$(2)))
HOST_TESTS := $(call tests_named,test,.c)
SIMT_TESTS := $(call tests_named,simt,.cu)
LAB_TESTS := $(call tests_named,lab,.cu)
# The first step whose descriptor has a field.
first_with = $(firstword $(subst _, ,$(notdir $(firstword $(sort $(shell grep -l '\.$(1) =' $(STEP_FILES)))))))

# --- The host code without main, with sanitizers and without ----------------------------------------

UNIT_HOST_SOURCES := $(filter-out common/host/main.c,$(HOST_SOURCES))
$(eval $(call special_host_objects,$(UNIT)))

# Compiled in half the time of -O2, and the tests are short.
$(UNIT)/host/%.o $(HOST_TESTS:%=$(UNIT)/%.o): private OPTIMISE := $(if $(filter 1,$(DEBUG)),-O0,-Og)

$(UNIT)/host/%.o: common/host/%.c $(BUILD)/flags
	$(call compile_c,$(SANITIZE))

$(UNIT)/libhost.a: $(UNIT_HOST_SOURCES:common/%.c=$(UNIT)/%.o) $(HOST_KERNELS)
$(BUILD)/plain/libhost.a: $(UNIT_HOST_SOURCES:common/%.c=$(BUILD)/%.o) $(HOST_KERNELS)
$(UNIT)/libhost.a $(BUILD)/plain/libhost.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(UNIT)/%.o: tests/unit/%.c $(BUILD)/flags
	$(needs_cmocka)
	$(call compile_c,$(SANITIZE))

# For valgrind.
$(BUILD)/plain/%.o: tests/unit/%.c $(BUILD)/flags
	$(needs_cmocka)
	$(call compile_c)

$(HOST_TESTS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/%.o $(UNIT)/libhost.a
	$(call link_program,$(SANITIZE) -lcmocka)

$(HOST_TESTS:%=$(BUILD)/plain/%): $(BUILD)/plain/%: $(BUILD)/plain/%.o $(BUILD)/plain/libhost.a
	$(call link_program,-lcmocka)

# --- The CPU backend and its lab --------------------------------------------------------------------

# The runtime is not instrumented: fibers are not threads.
$(UNIT)/%.o: tests/unit/%.cu $(REWRITER) $(BUILD)/flags
	$(needs_cmocka)
	$(compile_cu)

$(UNIT)/%.o: private KERNEL_CHECKS := $(CHECK_ALIGNMENT)

# The kernels of the lab's tests are compiled with the lab's checks.
$(LAB_TESTS:%=$(UNIT)/%.o): private KERNEL_CHECKS :=
$(LAB_TESTS:%=$(UNIT)/%.o): private SIMT_FLAGS += $(CHECKING)

$(SIMT_TESTS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/%.o $(SIMT_OBJECTS)
	$(call link_program,-lcmocka)

$(LAB_TESTS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/%.o $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,-lcmocka)

# It calls the first step with block masks.
$(UNIT)/simt/simt_many_tiles: $(call step_object,$(call first_with,block_masks))

# Whole programs, with the host code under the sanitizers: a step of each kind that it treats in another way.
# tests/e2e looks for wrong answers and findings of every step.
SANITIZED := $(sort $(firstword $(STEPS)) $(foreach field,block_masks workspace_zero takes_spans fp8 backward decode,$(call first_with,$(field))))
$(SANITIZED:%=$(UNIT)/%): $(UNIT)/%: $$(call step_object,$$*) $$(call checked_object,$$*) $$(call linked_objects,$$*) $(UNIT)/host/main.o \
    $(UNIT)/libhost.a $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,$(SANITIZE))

# --- Running them -----------------------------------------------------------------------------------

# With sanitizers these take six times as long; `make test-all` runs them so.
LONG_TESTS := $(if $(EXHAUSTIVE),,$(filter %/test_check %/test_check_diagnose %/test_check_right %/test_check_e4m3 %/test_gradients,$(HOST_TESTS)))
UNIT_TESTS := $(filter-out $(LONG_TESTS:%=$(UNIT)/%),$(HOST_TESTS:%=$(UNIT)/%)) $(LONG_TESTS:%=$(BUILD)/plain/%) \
	$(SIMT_TESTS:%=$(UNIT)/%) $(LAB_TESTS:%=$(UNIT)/%)
SANITIZED_STEPS := $(SANITIZED:%=$(UNIT)/%)
RUNS := $(UNIT_TESTS:%=%.run) $(SANITIZED_STEPS:%=%.run)
.PHONY: $(RUNS)

# One line for each test, and all of its output if it failed.
run_logged = { $(1); } >$<.log 2>&1 && echo "  ok     $<" || { cat $<.log; echo "  FAILED $<"; exit 1; }

# The number of random problems of test_check_right; `make test-all` uses a larger one.
TRIALS := 2000

$(UNIT_TESTS:%=%.run): %.run: % $(REWRITER)
	@$(call run_logged,TEST_TRIALS=$(TRIALS) $<)

$(SANITIZED_STEPS:%=%.run): %.run: %
	@$(call run_logged,tests/check_steps.sh $< && \
	  $< $$(if $< --info -n 70 >/dev/null 2>&1; then echo '-n 70'; else echo '-n 7'; fi) -k 129 -m causal $$(for o in "-d 128" "-t bf16"; do $< --info $$o >/dev/null 2>&1 && echo $$o; done) \
	  --check all --report)

# All of them, even if one fails.
test-unit:
	@$(MAKE) --no-print-directory -k $(JOBS) $(RUNS)

test-valgrind:
	$(call recipe_needs,valgrind,valgrind)
	@$(MAKE) $(HOST_TESTS:%=$(BUILD)/plain/%)
	@failed=0; for test in $(HOST_TESTS); do echo "--- $$test"; \
	  TEST_TRIALS=100 OMP_NUM_THREADS=1 valgrind -q --leak-check=full --errors-for-leak-kinds=definite \
	    --error-exitcode=9 $(BUILD)/plain/$$test || failed=1; done; exit $$failed

endif
