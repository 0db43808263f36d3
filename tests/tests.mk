# Tests, checks and what they need installed. Included by the Makefile.

# .venv where `make deps` has made one; looked up when used, so that `make deps test` works in one call.
PYTHON = $(shell if test -x .venv/bin/python; then echo .venv/bin/python; else echo python3; fi)

# --- Installing ------------------------------------------------------------------------------------

DEBIAN_PACKAGES := gcc g++ libcmocka-dev clang-format cppcheck valgrind gdb binutils git \
	python3 python3-venv
PYTHON_PACKAGES := numpy pytest matplotlib
SUDO = $(if $(filter 0,$(shell id -u)),,sudo)

deps:
	@command -v apt-get >/dev/null || { echo "make deps: needs apt-get (Debian, Ubuntu); elsewhere install: $(DEBIAN_PACKAGES)"; exit 1; }
	$(SUDO) apt-get update -q
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -q -y $(DEBIAN_PACKAGES)
	test -x .venv/bin/python || python3 -m venv .venv
	.venv/bin/python -m pip install -q $(PYTHON_PACKAGES)

# --- Real input ------------------------------------------------------------------------------------

# Its packages are many times as large as all of .venv, so they have an environment of their own.
ACTIVATIONS := build/activations
ACTIVATIONS_TOOL := tests/activations

$(ACTIVATIONS)/env/installed: $(ACTIVATIONS_TOOL)/requirements.txt
	$(call recipe_needs,python3,python3 python3-venv)
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "activations: needs Python 3.11 or later, not $$(python3 --version)" >&2; exit 1; }
	@python3 -c 'import ensurepip' 2>/dev/null || \
	  { echo "activations: python3 cannot make environments. Install what it lacks:" \
	    "sudo apt-get install python3-venv" >&2; exit 1; }
	@rm -rf $(@D)
	@mkdir -p $(ACTIVATIONS)
	python3 -m venv $(@D)
	$(@D)/bin/python -m pip install -q --no-deps -r $< || \
	  { echo "activations: pip could not fetch all of $<; it needs a network for that" >&2; exit 1; }
	@touch $@

# One thread: a sum that several share may be taken in another order the next time.
activations: $(ACTIVATIONS)/env/installed
	@rm -rf $(ACTIVATIONS)/dumped
	OPENBLAS_NUM_THREADS=1 $(<D)/bin/python $(ACTIVATIONS_TOOL)/dump.py $(ACTIVATIONS)/dumped $(KEEP)

# What real input does to the steps: measures anew, writes the tables of docs/real-input.md, draws.
REAL_INPUT := plots/results/real_input

real-input:
	@$(PYTHON) -c 'import numpy, matplotlib' 2>/dev/null || \
	  { echo "real-input: Python needs numpy and matplotlib. Install them: make deps"; exit 1; }
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%)
	$(PYTHON) plots/real_input/measure.py $(REAL_INPUT)
	$(PYTHON) plots/real_input/tables.py docs/real-input.md $(REAL_INPUT)
	$(PYTHON) plots/real_input/figure.py $(REAL_INPUT) build/plots

# What the lab of the CPU backend counts of all steps, side by side; of one shape in docs/lab.md too.
lab:
	@$(PYTHON) -c 'import numpy' 2>/dev/null || \
	  { echo "lab: Python needs numpy. Install it: make deps"; exit 1; }
	@$(MAKE) BACKEND=cpu DEBUG=0 WERROR=0 $(STEPS:%=build/cpu/%)
	$(PYTHON) plots/lab.py build/lab.md docs/lab.md

# Installing comes first when more is asked for, with -j too: all that is compiled needs the flags.
ifneq ($(filter deps,$(GOALS)),)
$(BUILD)/flags test test-unit test-e2e test-valgrind check-format lint: | deps
endif

# --- Unit tests: always on the CPU backend's headers, so that they need no toolkit -----------------

# cmocka is looked for when the tests are built, not when the Makefile is read.
hash := \#
HAVE_CMOCKA = $(shell printf '$(hash)include <%s>\n' stdarg.h stddef.h setjmp.h stdint.h cmocka.h | \
	$(CC) -fsyntax-only -x c - 2>/dev/null && echo yes)
NO_CMOCKA = cmocka not found. Install it: sudo apt-get install libcmocka-dev

# A program tells whether there is a GPU, by its exit code: no test is worth starting without one.
NEEDS_GPU := $(if $(filter cuda,$(BACKEND)),need-gpu)
.PHONY: need-gpu
need-gpu: $(BUILD)/$(firstword $(STEPS))
	@$< --info >/dev/null 2>&1; test $$? -ne 77 || \
	  { echo "BACKEND=cuda: the tests found no GPU; make test BACKEND=cpu needs none" >&2; exit 1; }

# One after the other, with -j too: their outputs do not mix.
test: $(NEEDS_GPU)
	@$(MAKE) test-unit
	@$(MAKE) test-e2e

ifeq ($(BACKEND),cuda)
test-unit:
	@if [ "$(HAVE_CMOCKA)" = yes ]; then $(MAKE) BACKEND=cpu test-unit; \
	else echo "test-unit: skipped: $(NO_CMOCKA)"; fi
else

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
UNIT := $(BUILD)/unit
HOST_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*/test_*.c))
# Sanitizers would be what these measure.
SPEED_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*/speed_*.c))
SIMT_TESTS := $(patsubst tests/unit/%.cu,%,$(wildcard tests/unit/simt/simt_*.cu))
LAB_TESTS := $(patsubst tests/unit/%.cu,%,$(wildcard tests/unit/lab/lab_*.cu))
# What the unit tests link: the host without main.
UNIT_HOST_SOURCES := $(filter-out common/host/main.c,$(HOST_SOURCES))

$(UNIT)/host/check/reference.o: HOST_FLAGS += $(VECTORISE)
$(UNIT)/host/base/version.o: $(BUILD)/commit.h
$(UNIT)/host/device/ceiling_cache.o: $(BUILD)/ceiling_version.h
$(UNIT)/host/base/version.o $(UNIT)/host/device/ceiling_cache.o: HOST_FLAGS += -I$(BUILD)

$(UNIT)/host/%.o: common/host/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(SANITIZE) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

$(UNIT)/%.o: tests/unit/%.c $(BUILD)/flags
	@test "$(HAVE_CMOCKA)" = yes || { echo "$(NO_CMOCKA)"; exit 1; }
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(SANITIZE) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

$(UNIT)/libhost.a: $(UNIT_HOST_SOURCES:common/%.c=$(UNIT)/%.o)
	@rm -f $@
	$(Q)ar rcs $@ $^

$(HOST_TESTS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/%.o $(UNIT)/libhost.a
	$(call say,LINK,$@)
	$(Q)$(CC) $< $(UNIT)/libhost.a -o $@ $(SANITIZE) -fopenmp -lcmocka -lm

# The same tests without sanitizers, for valgrind, and those of speed.
$(BUILD)/plain/%.o: tests/unit/%.c $(BUILD)/flags
	@test "$(HAVE_CMOCKA)" = yes || { echo "$(NO_CMOCKA)"; exit 1; }
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

$(HOST_TESTS:%=$(BUILD)/plain/%) $(SPEED_TESTS:%=$(BUILD)/plain/%): $(BUILD)/plain/%: \
    $(BUILD)/plain/%.o $(BUILD)/plain/libhost.a
	$(call say,LINK,$@)
	$(Q)$(CC) $< $(BUILD)/plain/libhost.a -o $@ -fopenmp -lcmocka -lm

$(BUILD)/plain/libhost.a: $(UNIT_HOST_SOURCES:common/%.c=$(BUILD)/%.o)
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)ar rcs $@ $^

# Kernels that test the backend. Its runtime is not instrumented: fibers are not threads.
$(UNIT)/%.o: tests/unit/%.cu $(BUILD)/rewrite_launches $(BUILD)/flags
	@test "$(HAVE_CMOCKA)" = yes || { echo "$(NO_CMOCKA)"; exit 1; }
	$(compile_cu)

$(SIMT_TESTS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/%.o $(SIMT_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -o $@ -lcmocka -lpthread -lm

# The steps once more, for the comparison of the lab with Nsight Compute: they write down its counts.
# So does cp.async alone.
LAB_COUNTERS := $(if $(filter cpu,$(BACKEND)),$(STEPS:%=$(BUILD)/counts/%) $(BUILD)/counts/copies)
.PHONY: lab-counts
lab-counts: $(LAB_COUNTERS)

$(BUILD)/gpu/%.o: tests/gpu/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

$(BUILD)/gpu/copies.o: tests/gpu/copies.cu $(BUILD)/rewrite_launches $(BUILD)/flags
	$(compile_cu)

$(BUILD)/gpu/copies.o: SIMT_FLAGS += $(CHECKING)

$(BUILD)/counts/copies: $(BUILD)/gpu/copies.o $(BUILD)/gpu/lab_counts.o $(BUILD)/plain/libhost.a \
    $(SIMT_OBJECTS) $(LAB_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -Wl,--wrap=lab_take_results -o $@ -fopenmp -lpthread -lm

$(STEPS:%=$(BUILD)/counts/%): $(BUILD)/counts/%: $(BUILD)/gpu/lab_counts.o $(BUILD)/steps/%.o $(BUILD)/checked/%.o \
    $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -Wl,--wrap=lab_take_results -o $@ -fopenmp -lpthread -lm

# Tests of the lab watch themselves: kernels of the checking build.
$(LAB_TESTS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/%.o $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -o $@ -lcmocka -lpthread -lm

$(UNIT)/%.o: KERNEL_CHECKS := $(CHECK_ALIGNMENT)
$(LAB_TESTS:%=$(UNIT)/%.o): KERNEL_CHECKS :=
$(LAB_TESTS:%=$(UNIT)/%.o): SIMT_FLAGS += $(CHECKING)

# Calls a step.
$(UNIT)/simt/simt_many_tiles: $(UNIT)/steps/step05.o

$(STEPS:%=$(UNIT)/steps/%.o): $(UNIT)/steps/%.o: $$(wildcard steps/$$*_*.cu) $(BUILD)/rewrite_launches $(BUILD)/flags
	$(compile_cu)

# Whole programs with the host code under the sanitizers.
$(STEPS:%=$(UNIT)/%): $(UNIT)/%: $(UNIT)/steps/%.o $(UNIT)/host/main.o $(UNIT)/libhost.a \
    $(BUILD)/host/device/ceiling.o $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CXX) $^ -o $@ $(SANITIZE) -fopenmp -lpthread -lm

UNIT_TESTS := $(HOST_TESTS:%=$(UNIT)/%) $(SPEED_TESTS:%=$(BUILD)/plain/%) $(SIMT_TESTS:%=$(UNIT)/%) $(LAB_TESTS:%=$(UNIT)/%)

test-unit: $(UNIT_TESTS) $(STEPS:%=$(UNIT)/%) $(BUILD)/rewrite_launches
	@failed=0; \
	for test in $(UNIT_TESTS); do echo "--- $${test##*/}"; $$test || failed=1; done; \
	for step in $(STEPS); do echo "--- $$step, sanitized"; \
	  $(UNIT)/$$step --cases tests/sanitize.cases --heads 2 --check all || failed=1; done; \
	for step in $(TURING_STEPS); do \
	  $(UNIT)/$$step --cases tests/sanitize_any_d.cases --heads 2 --check all || failed=1; done; \
	exit $$failed

-include $(wildcard $(UNIT)/*/*.d $(UNIT)/*/*/*.d $(UNIT)/*/*/*/*.d $(BUILD)/plain/*/*.d)

endif

test-valgrind:
	@test "$(BACKEND)" = cpu || { echo "make test-valgrind: needs BACKEND=cpu"; exit 1; }
	$(call recipe_needs,valgrind,valgrind)
	@$(MAKE) $(HOST_TESTS:%=$(BUILD)/plain/%)
	@failed=0; for test in $(HOST_TESTS); do echo "--- $$test"; \
	  TEST_TRIALS=100 OMP_NUM_THREADS=1 valgrind -q --leak-check=full --errors-for-leak-kinds=definite \
	    --error-exitcode=9 $(BUILD)/plain/$$test || failed=1; done; exit $$failed

# --- End to end ------------------------------------------------------------------------------------

# A step called directly, without the command line around it.
UNDER_TEST := $(STEPS:%=$(BUILD)/under_test/%)
# step_under_test.c answers for the device where a test wants an older one.
WRAP := --wrap=cudaDeviceGetAttribute

$(BUILD)/e2e/%.o: tests/e2e/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

$(UNDER_TEST): $(BUILD)/under_test/%: $(BUILD)/steps/%.o $(BUILD)/e2e/step_under_test.o \
    $(filter-out %/main.o,$(HOST_OBJECTS)) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
ifeq ($(BACKEND),cuda)
	$(Q)$(NVCC) $^ -o $@ -cudart static -Xlinker $(WRAP) -Xcompiler -fopenmp -lm
else
	$(Q)$(CXX) $^ -o $@ -Wl,$(WRAP) -fopenmp -lpthread -lm
endif

# Steps as shared libraries, for callers in Python, from the objects of the programs. Two of them in one
# process do not mix.
LIBRARIES := $(STEPS:%=$(BUILD)/lib%.so)

libraries: $(LIBRARIES)

$(BUILD)/plots/%.o: plots/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(HOST_FLAGS) $(PIC) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@

# The simulated runtime stays visible: callers need its cudaMalloc.
$(LIBRARIES): $(BUILD)/lib%.so: $(BUILD)/steps/%.o $(BUILD)/plots/step_library.o $(SIMT_OBJECTS)
	$(call say,LINK,$@)
ifeq ($(BACKEND),cuda)
	$(Q)$(NVCC) -shared $^ -o $@ -cudart static -Xlinker -Bsymbolic -Xlinker --exclude-libs=ALL
else
	$(Q)$(CXX) -shared $^ -o $@ -Wl,-Bsymbolic -lpthread -lm
endif

test-e2e: $(NEEDS_GPU) $(STEPS:%=$(BUILD)/%) $(BUILD)/layouts $(UNDER_TEST) $(LIBRARIES) \
    $(LAB_COUNTERS)
	@$(PYTHON) -c 'import numpy, pytest, matplotlib' 2>/dev/null || \
	  { echo "test-e2e: Python needs numpy, pytest and matplotlib. Install them: make deps"; exit 1; }
	BACKEND=$(BACKEND) STEP_DIR=$(abspath $(BUILD)) $(PYTHON) -m pytest -q tests/e2e $(PYTEST_ARGS)

# --- Mutants ---------------------------------------------------------------------------------------

# Every small change to a kernel that makes it wrong must be noticed: docs/mutants.md.
MUTANTS := build/mutants
MUTANT_OPTIONS = $(STEP:%=--step=step%) $(if $(ONLY),--only='$(ONLY)') \
	$(if $(SUMMARY),--summary=$(SUMMARY))

.PHONY: mutants
mutants: $(BUILD)/rewrite_launches $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS) $(BUILD)/e2e/step_under_test.o
	@test "$(BACKEND)" = cpu || { echo "make mutants: needs BACKEND=cpu"; exit 1; }
	$(call recipe_needs,$(PYTHON),python3)
	@COMMIT="$(COMMIT)" REWRITE=$(BUILD)/rewrite_launches LINK="$(CXX) -fopenmp -lpthread -lm" \
	  COMPILE="$(CXX) $(SIMT_FLAGS) $(CHECKING)" MAIN_OBJECT=$(BUILD)/host/main.o \
	  UNDER_TEST_OBJECT=$(BUILD)/e2e/step_under_test.o \
	  OBJECTS="$(filter-out %/main.o %/step_under_test.o,$(filter %.o,$^))" \
	  nice $(PYTHON) tests/mutants/run.py $(MUTANTS) $(MUTANT_OPTIONS)

# Right kernels have no finding in any order of threads.
.PHONY: lab-orders
lab-orders: $(STEPS:%=$(BUILD)/%)
	@test "$(BACKEND)" = cpu || { echo "make lab-orders: needs BACKEND=cpu"; exit 1; }
	@$(PYTHON) -c 'import numpy, pytest' 2>/dev/null || \
	  { echo "lab-orders: Python needs numpy and pytest. Install them: make deps"; exit 1; }
	nice $(PYTHON) tests/mutants/orders.py $(BUILD) build/orders $(if $(STEP),--step=step$(STEP))

# --- Checks of the source --------------------------------------------------------------------------

C_SOURCES = $(shell git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')

check-format:
	$(call recipe_needs,clang-format,clang-format)
	@clang-format --dry-run -Werror $(C_SOURCES) && echo "check-format: $(words $(C_SOURCES)) files are formatted"

lint:
	$(call recipe_needs,cppcheck,cppcheck)
	cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
	  --suppress=missingIncludeSystem --error-exitcode=1 -Icommon -Icommon/simt/include \
	  common/host common/simt/runtime common/simt/lab common/simt/rewrite_launches.c
	$(MAKE) BACKEND=cpu WERROR=1 lint-build
	@if command -v $(NVCC) >/dev/null; then $(MAKE) BACKEND=cuda WERROR=1 ARCH="$(ARCH)" lint-build; \
	else echo "lint: no nvcc, so only g++ has been asked"; fi

.PHONY: lint-build
lint-build: $(STEPS:%=$(BUILD)/%) $(UNDER_TEST) $(LIBRARIES)
