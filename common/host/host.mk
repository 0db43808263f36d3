# The host code: C11, the same for both backends except for the headers of the CUDA runtime.

# No contraction to fused multiply-adds: the generators promise the same bits on every machine.
HOST_FLAGS = -std=c11 -D_GNU_SOURCE $(OPTIMISE) $(DEBUG_INFO) $(WARNINGS) -ffp-contract=off -fopenmp -Icommon
# -O3 vectorises the two hot loops: the reference, and mma of the CPU backend.
VECTORISE := $(if $(filter 1,$(DEBUG)),,-O3)

CUDA_INCLUDE = $(abspath $(dir $(shell command -v $(NVCC)))../include)
RUNTIME_INCLUDE = $(if $(filter cuda,$(BACKEND)),-isystem $(CUDA_INCLUDE),-Icommon/simt/include)

HOST_SOURCES := $(wildcard common/host/*.c common/host/*/*.c) \
	$(if $(filter cpu,$(BACKEND)),$(wildcard common/host/report/lab/*.c))
# Kernels of the main program, and what libraries of steps take of them.
LIMIT_KERNELS := $(BUILD)/host/device/flush.o $(BUILD)/host/device/limits.o
HOST_KERNELS := $(BUILD)/host/device/ceiling.o $(LIMIT_KERNELS)
OF_LIBRARIES := $(LIMIT_KERNELS) $(BUILD)/host/device/graph.o
HOST_OBJECTS := $(HOST_SOURCES:common/%.c=$(BUILD)/%.o) $(HOST_KERNELS)

define compile_c
@mkdir -p $(@D)
$(call say,CC,$<)
$(Q)$(CC) $(HOST_FLAGS) $(1) $(RUNTIME_INCLUDE) -MMD -MP -c $< -o $@
endef

$(BUILD)/host/%.o: common/host/%.c $(BUILD)/flags
	$(call compile_c)

# Flags of single objects; $(1) is the build folder.
define special_host_objects
$(1)/host/check/reference.o: private HOST_FLAGS += $(VECTORISE)
$(1)/host/device/graph.o: private HOST_FLAGS += $(PIC)
$(1)/host/base/version.o: $(BUILD)/commit.h
$(1)/host/base/version.o: private HOST_FLAGS += -I$(BUILD)
endef
$(eval $(call special_host_objects,$(BUILD)))

$(HOST_KERNELS): $(BUILD)/%.o: common/%.cu $$(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))
