# The CPU backend: its runtime, its lab, and how it compiles kernels. CUDA builds do not read this file.

# Shared memory is one array of bytes that holds many types, hence -fno-strict-aliasing;
# -fno-extern-tls-init, which clang does not know, spares a call at each use of shared memory; without
# -fno-gnu-unique, nor known to clang, objcopy cannot make all names of a step local;
# -fstack-clash-protection lets no large frame jump over the guard below a fiber's stack;
# -fno-optimize-sibling-calls keeps calls calls, so that reports can say who called. DWARF 4, as
# addr2line up to binutils 2.40 names the .cpp for lines of the first file in a table of DWARF 5.
GXX_ONLY = $(eval GXX_ONLY := $$(foreach flag,-fno-extern-tls-init -fno-gnu-unique,$$(call if_known,$$(flag))))$(GXX_ONLY)
# -Wfatal-errors: what the CPU backend does not have is told in one line, not in the errors that follow from it.
SIMT_FLAGS = -std=c++17 -Wfatal-errors $(OPTIMISE) $(PIC) -gdwarf-4 $(DEBUG_INFO) $(WARNINGS) -Wno-unknown-pragmas -Wno-psabi -fno-strict-aliasing \
	$(GXX_ONLY) -ffp-contract=off -fstack-clash-protection -fno-optimize-sibling-calls \
	-Icommon -Icommon/simt/include
SIMT_RUNTIME_FLAGS = -std=c11 -D_GNU_SOURCE $(OPTIMISE) $(DEBUG_INFO) $(WARNINGS) -fPIC -Icommon -Icommon/simt/include
# Misaligned accesses, which a GPU refuses, are reported by debug builds and tests.
CHECK_ALIGNMENT := -fsanitize=alignment
KERNEL_CHECKS := $(if $(filter 1,$(DEBUG)),$(CHECK_ALIGNMENT))

# The checking build of a kernel calls the lab at each load and store: -fsanitize=thread, but with the
# lab's own functions; -fsanitize=bounds reports indices outside an array. -Og compiles in two thirds of the
# time of -O1 and runs as fast. It does not split the load or store of a struct, as -O1 does and nvcc does not,
# so more counts equal a GPU's. g++ must not move loads of static arrays out of a condition within a loop:
# threads that do not enter the condition would make them too. Local arrays stand for registers of wgmma, so
# other variables must not use their place on the stack. memcpy() and others must be calls, because the
# compiler reports no accesses of its own versions of them.
# g++ is asked about its flags at once; clang, which does not know all of them, about each.
GXX_CHECKING := -fstack-reuse=none -fno-tree-loop-im --param=tsan-instrument-func-entry-exit=0
CHECKING = $(eval CHECKING := -Og -DSIMT_CHECKING -fsanitize=thread,bounds \
	-fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset \
	$$(or $$(call if_known,$$(GXX_CHECKING)),$$(foreach flag,$$(GXX_CHECKING),$$(call if_known,$$(flag))) \
	$$(call if_known,-mllvm -no-stack-coloring) \
	$$(call if_known,-mllvm -tsan-instrument-func-entry-exit=0)))$(CHECKING)

SIMT_OBJECTS := $(patsubst common/%.c,$(BUILD)/%.o,$(wildcard common/simt/runtime/*.c)) \
	$(patsubst common/%.S,$(BUILD)/%.o,$(wildcard common/simt/runtime/*.S))
# The lab, which watches kernels for --report; steps as libraries do without.
LAB_OBJECTS := $(patsubst common/%.c,$(BUILD)/%.o,$(wildcard common/simt/lab/*.c))

# Rewrites kernel launches, and the rest of what is not C++.
REWRITER := $(BUILD)/rewrite_launches

$(REWRITER): common/simt/rewrite_launches.c common/simt/tokens.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(HOSTCC) -std=gnu11 -O1 $(WARNINGS) $< -o $@

define compile_cu
@mkdir -p $(@D)
$(call say,CXX,$<)
$(Q)$(REWRITER) $< > $(@:.o=.cpp)
$(Q)$(CXX) $(SIMT_FLAGS) $(KERNEL_CHECKS) -MMD -MP -MT $@ -c $(@:.o=.cpp) -o $@
endef

$(BUILD)/simt/runtime/tensor.o: private SIMT_RUNTIME_FLAGS += $(VECTORISE)

$(BUILD)/simt/%.o: common/simt/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(SIMT_RUNTIME_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/simt/%.o: common/simt/%.S $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,AS,$<)
	$(Q)$(CC) -c $< -o $@

# --- The backend alone, for other CUDA C: README.md ---------------------------------------------------

## make simt              the CPU backend alone, in build/simt, for CUDA C of any kind
.PHONY: simt
KIT := build/simt$(PROCESSOR)
KIT_HEADERS := $(wildcard common/simt/include/*.h) common/float16.h
# Without what is this project's own: where its headers are, and which warnings it wants.
KIT_FLAGS = $(filter-out -Icommon% $(WARNINGS),$(SIMT_FLAGS))

simt: $(KIT)/libsimt.a $(KIT)/libsimt_lab.a $(REWRITER)
	@mkdir -p $(KIT)/include/simt/lab
	@cp --remove-destination $(REWRITER) common/simt/kit/simtcc $(KIT)
	@cp --remove-destination $(KIT_HEADERS) $(KIT)/include
	@cp --remove-destination common/simt/lab/lab.h $(KIT)/include/simt/lab
	@printf "%s='%s'\n" COMPILER '$(CXX)' FLAGS '$(KIT_FLAGS)' CHECKING '$(CHECKING)' > $(KIT)/flags
	@echo "$(KIT)/simtcc compiles CUDA C for the CPU: see common/simt/README.md"

$(KIT)/libsimt.a: $(SIMT_OBJECTS)
$(KIT)/libsimt_lab.a: $(LAB_OBJECTS) $(BUILD)/simt/kit/at_exit.o
$(KIT)/libsimt.a $(KIT)/libsimt_lab.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
