# The exercises and the kernels that are broken on purpose; see docs/classroom.md.

EXERCISES := $(sort $(foreach file,$(wildcard steps/exercises/ex*.md steps/exercises/broken*.md),\
	$(firstword $(subst _, ,$(basename $(notdir $(file)))))))

## make exercises         list the exercises in the order of a course, and which you have started
## make ex07              write the starting file steps/exercises/ex07.cu once; then build and check it
## make broken07          the same for a kernel with a fault
## make hint EX=07        the next hint to ex07; make hint N=07 to broken07
## make grade             check all exercises that were started, or ONLY="ex01 ex02"; writes build/grade.json
.PHONY: exercises grade hint $(EXERCISES)

CLASSROOM = BACKEND=$(BACKEND) BUILD=$(BUILD) MAKE="$(MAKE)" $(PYTHON) steps/exercises/classroom.py
needs_python = $(call recipe_needs,$(PYTHON),python3)

exercises:
	$(needs_python)
	@$(CLASSROOM) list

$(EXERCISES):
	$(needs_python)
	@$(CLASSROOM) check $@

grade:
	$(needs_python)
	@$(CLASSROOM) grade $(ONLY)

hint:
	$(needs_python)
	@$(CLASSROOM) hint $(if $(N),broken$(N),ex$(EX:ex%=%))

# Programs of the files in this folder, and of those that classroom.py makes. They may include
# common/device and the headers beside it, and nothing of the host.
EXERCISE_FOLDER := $(BUILD)/exercises
EXERCISE_INCLUDE := $(EXERCISE_FOLDER)/include
exercise_flags = $(patsubst -Icommon,-I$(EXERCISE_INCLUDE),$(1)) -Isteps/foundations

SHARED_HEADERS := $(addprefix $(EXERCISE_INCLUDE)/,device attention.h backward.h block_mask.h decode.h float16.h tensor_map_limits.h)

$(SHARED_HEADERS): $(EXERCISE_INCLUDE)/%:
	@mkdir -p $(@D) && ln -sfnr common/$* $(@D)

# With the CPU backend, the headers of the runtime are compiled once: reading them takes a third of the
# time of an exercise.
EXERCISE_HEADERS := $(SHARED_HEADERS) \
	$(if $(filter cpu,$(BACKEND)),$(EXERCISE_INCLUDE)/headers.h.gch)

$(EXERCISE_FOLDER)/%.o: steps/exercises/%.cu $(EXERCISE_HEADERS) $(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))

$(EXERCISE_FOLDER)/made/%.o: $(EXERCISE_FOLDER)/made/%.cu $(EXERCISE_HEADERS) $(REWRITER) $(BUILD)/flags
	$(call compile_cu,$(ARCH))

WATCH := $(if $(filter cpu,$(BACKEND)),$(EXERCISE_FOLDER)/watch.o)

$(WATCH): steps/exercises/watch.c $(BUILD)/flags
	$(call compile_c)

# Backward steps take O and LSE from a forward step. It is no part of the library, because what refers to
# it is weak and would not take it from there.
# The linker takes main.o for a step, and foundation.o for a program of chapter 0, which has main() itself.
$(EXERCISE_FOLDER)/libhost.a: $(BUILD)/foundations/foundation.o $(HOST_OBJECTS)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(EXERCISE_FOLDER)/%: $(EXERCISE_FOLDER)/%.o $(FORWARD_OBJECT) $(MASKED_FORWARD_OBJECT) $(WATCH) $(SIMT_OBJECTS) $(LAB_OBJECTS) \
    $(EXERCISE_FOLDER)/libhost.a
	$(call link_program,$(SAME_STEP) $(FOUNDATION_LIBRARIES))

ifeq ($(BACKEND),cuda)
$(EXERCISE_FOLDER)/%.o: private NVCC_FLAGS := $(call exercise_flags,$(NVCC_FLAGS))
else
# Only the checking build is made; it serves as the plain one, too.
CHECKED_EXERCISE = $(call exercise_flags,$(SIMT_FLAGS)) $(CHECKING)
$(EXERCISE_FOLDER)/%.o: private SIMT_FLAGS := $(CHECKED_EXERCISE) -include $(EXERCISE_INCLUDE)/headers.h
SAME_STEP := steps/exercises/link.ld

$(EXERCISE_INCLUDE)/headers.h.gch: steps/exercises/headers.h $(BUILD)/flags | $(SHARED_HEADERS)
	@mkdir -p $(@D) && ln -sfnr $< $(@D)
	$(Q)$(CXX) $(CHECKED_EXERCISE) -MMD -MP -MT $@ -x c++-header $< -o $@

JUDGES := $(BUILD)/judge $(BUILD)/judge_e4m3 $(BUILD)/judge_backward $(BUILD)/judge_spans \
	$(BUILD)/judge_decode

$(BUILD)/judge.o: steps/exercises/judge.c $(BUILD)/flags
	$(call compile_c)

$(BUILD)/judge_e4m3.o: steps/exercises/judge.c $(BUILD)/flags
	$(call compile_c,-DE4M3)

$(BUILD)/judge_backward.o: steps/exercises/judge.c $(BUILD)/flags
	$(call compile_c,-DBACKWARD)

$(BUILD)/judge_spans.o: steps/exercises/judge.c $(BUILD)/flags
	$(call compile_c,-DBACKWARD -DSPANS)

$(BUILD)/judge_decode.o: steps/exercises/judge.c $(BUILD)/flags
	$(call compile_c,-DDECODE)

# What all checks of exercises need; tests make it before several of them run at a time.
EXERCISE_TOOLS := $(JUDGES) $(EXERCISE_HEADERS) $(WATCH) $(EXERCISE_FOLDER)/libhost.a

$(JUDGES): %: %.o $(FORWARD_OBJECT) $(MASKED_FORWARD_OBJECT) $(HOST_OBJECTS) $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program)
endif
