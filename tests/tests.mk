# Tests, checks of the source, and the packages they need.

## make test-all          the tests, every variant of them; valgrind; lint (long: CONTRIBUTING.md)
## make test-e2e          the programs end to end, against NumPy
## make check-format      check the layout of the source with clang-format, and the Python code with ruff
## make budget            how long each step is, and what it adds: is one too long to read?
## make lint              make cppcheck, and every compiler warning is an error
## make activations       run language models, which it installs, for the inputs in tests/data
.PHONY: deps test test-all test-e2e need-gpu activations check-format budget cppcheck lint lint-build
COMPILE_NOTHING += deps check-format budget cppcheck activations

include tests/unit/unit.mk
include tests/gpu/gpu.mk
include tests/mutants/mutants.mk

# --- Installing ------------------------------------------------------------------------------------

deps:
	@tests/deps.sh

# --- Every test ------------------------------------------------------------------------------------

# A program's exit code says whether there is a GPU; without one no test is started.
NEEDS_GPU := $(if $(filter cuda,$(BACKEND)),need-gpu)
need-gpu: $(BUILD)/$(firstword $(STEPS))
	@$< --info >/dev/null 2>&1; test $$? -ne 77 || \
	  { echo "BACKEND=cuda: the tests found no GPU; make test BACKEND=cpu needs none" >&2; exit 1; }

# All cores, unless make was given a number of jobs.
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

# One after the other, also with -j, so that their outputs do not mix.
test: $(NEEDS_GPU)
	@$(MAKE) --no-print-directory $(JOBS) test-unit
	@$(MAKE) --no-print-directory $(JOBS) test-e2e

# `make test` leaves out tests that take long or repeat what others test.
test-all: $(NEEDS_GPU)
	@$(MAKE) --no-print-directory $(JOBS) test-unit EXHAUSTIVE=1 TRIALS=20000
	@$(MAKE) --no-print-directory $(JOBS) test-e2e EXHAUSTIVE=1
ifeq ($(BACKEND),cpu)
	@$(MAKE) --no-print-directory $(JOBS) test-valgrind
	@$(MAKE) --no-print-directory $(JOBS) lint
endif

# --- End to end ------------------------------------------------------------------------------------

# Steps called directly, without the command line.
UNDER_TEST := $(STEPS:%=$(BUILD)/under_test/%)
# Both callers replace this function, so that a test can report an older device.
WRAP := -Xlinker --wrap=cudaDeviceGetAttribute

caller_of = $(BUILD)/tests/$(if $(filter $(1),$(call short_names,$(DECODE_STEPS))),decode,step)_under_test.o

$(BUILD)/tests/%.o: tests/lib/%.c $(BUILD)/flags
	$(call compile_c)

$(UNDER_TEST): $(BUILD)/under_test/%: $$(call step_object,$$*) $$(call linked_objects,$$*) $$(call caller_of,$$*) \
    $(filter-out %/main.o,$(HOST_OBJECTS)) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program,$(WRAP))

# A GPU runs one test at a time, so that none of them runs out of memory.
TEST_JOBS = $(if $(filter cuda,$(BACKEND)),0,$(shell nproc))
# With as many tests at a time as cores, a program is fastest with one thread.
ONE_THREAD = $(if $(filter cpu,$(BACKEND)),OMP_NUM_THREADS=1 SIMT_THREADS=1)

test-e2e: $(EXERCISE_TOOLS) $(NEEDS_GPU) $(STEP_PROGRAMS) $(BUILD)/layouts $(BUILD)/layouts_hopper $(BUILD)/layouts_cluster $(UNDER_TEST) \
    $(LIBRARIES) $(LAB_COUNTERS) $(FOUNDATIONS:%=$(BUILD)/%) $(if $(filter cpu,$(BACKEND)),$(RECORDERS) simt)
	@$(PYTHON) -c 'import numpy, pytest, xdist, matplotlib' 2>/dev/null || \
	  { echo "test-e2e: Python needs numpy, pytest, pytest-xdist and matplotlib. Install them: make deps"; exit 1; }
	$(ONE_THREAD) BACKEND=$(BACKEND) STEP_DIR=$(abspath $(BUILD)) $(PYTHON) -m pytest -q -n $(TEST_JOBS) \
	  $(if $(EXHAUSTIVE),,-m "not exhaustive") $(PYTEST_ARGS)

# --- Real input ------------------------------------------------------------------------------------

# These packages are many times as large as .venv, so they have an environment of their own.
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

# One thread: with several, the order of a sum may differ from run to run.
activations: $(ACTIVATIONS)/env/installed
	@rm -rf $(ACTIVATIONS)/dumped
	OPENBLAS_NUM_THREADS=1 $(<D)/bin/python -m tests.activations.dump $(ACTIVATIONS)/dumped $(KEEP)

# --- Checks of the source --------------------------------------------------------------------------

C_SOURCES = $(shell git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')

check-format:
	$(call recipe_needs,clang-format,clang-format)
	@$(PYTHON) -c 'import ruff' 2>/dev/null || \
	  { echo "make $@: Python needs ruff. Install it: make deps" >&2; exit 1; }
	@clang-format --dry-run -Werror $(C_SOURCES) && echo "check-format: $(words $(C_SOURCES)) files are formatted"
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check

budget:
	@$(PYTHON) -m tests.budget

cppcheck:
	$(call recipe_needs,cppcheck,cppcheck)
	@mkdir -p build/cppcheck
	cppcheck -j$(shell nproc) --cppcheck-build-dir=build/cppcheck --quiet --std=c11 \
	  --enable=warning,performance,portability --inline-suppr --suppress=missingIncludeSystem \
	  --error-exitcode=1 -Icommon -Icommon/simt/include common/host common/simt

# Everything is compiled again in a separate folder, because existing objects show no warnings.
lint: cppcheck
	$(MAKE) $(JOBS) BACKEND=cpu WERROR=1 STEP_OPTIMISE=-O2 BUILD=build/lint-cpu lint-build
	@if command -v $(NVCC) >/dev/null; then \
	  $(MAKE) $(JOBS) BACKEND=cuda WERROR=1 BUILD=build/lint-cuda ARCH="$(ARCH)" lint-build; \
	else echo "lint: no nvcc, so only g++ has been asked"; fi

lint-build: $(STEP_PROGRAMS) $(UNDER_TEST) $(LIBRARIES)
