# The documentation site: the pages, the reference, the explorers.

## make docs              the documentation site: build/docs/site/index.html
## make slides            the slides of the lessons again, which make docs makes: build/docs/site/slides
## make pages             write speed, lab counts, options and lines of the source into the pages
## make explorers         the interactive explorers of fragments, banks and pipelines: build/docs/explorers
## make notebook          run docs/classroom.ipynb on the CPU backend, and save it with its outputs
## make check-docs        look at the site with headless Chromium, and run the commands in the pages
.PHONY: docs pages slides check-docs

SITE := build/docs/site
PAGES := build/docs/pages
EXPLORERS := build/docs/explorers
DATA := $(EXPLORERS)/data/fragments.js $(EXPLORERS)/data/banks.js $(EXPLORERS)/data/shares.js $(EXPLORERS)/data/timeline.js
MATHJAX := /usr/share/javascript/mathjax
# What the formulas of the pages need. The tests fail if a page asks for another part.
MATHJAX_PARTS := MathJax.js jax/input/TeX jax/element \
	$(addprefix extensions/,AssistiveMML.js MathEvents.js TeX/AMSmath.js TeX/AMSsymbols.js tex2jax.js toMathML.js) \
	$(addprefix jax/output/SVG/,config.js jax.js autoload) \
	$(addprefix jax/output/SVG/fonts/TeX/,fontdata.js fontdata-extra.js Main/Regular Math/Italic AMS/Regular Size1 Size2 Size3 Size4)

needs_sphinx = @$(PYTHON) -c 'import breathe, furo, myst_parser, sphinx_copybutton, sphinx_revealjs' 2>/dev/null && test -d $(MATHJAX) || \
	  { echo "docs: Sphinx, one of its extensions or libjs-mathjax is missing. Install them: make deps"; exit 1; }

# What the site is made from. Folders are among it, so that a removed file counts, too.
SITE_SOURCES := $(if $(filter docs check-docs,$(MAKECMDGOALS)),$(shell \
	find docs/ steps common plots/*.py *.md CITATION.cff -not -path '*__pycache__*'))

docs: $(SITE)/index.html
	@echo "docs: $<, $$(du -sh --apparent-size $(SITE) | cut -f1)"

$(SITE)/index.html: $(SITE_SOURCES) | explorers
	$(call recipe_needs,doxygen,doxygen)
	$(needs_sphinx)
	$(Q)rm -rf $(SITE) $(PAGES) build/docs/xml build/docs/doctrees && mkdir -p $(SITE) $(PAGES)
	$(Q)cp -r docs/*.md docs/pictures steps/exercises/*.md $(PAGES)
	$(Q)cp CONTRIBUTING.md $(PAGES)/contributing.md && cp CHANGELOG.md $(PAGES)/changelog.md
	$(Q)doxygen docs/Doxyfile
	$(Q)$(PYTHON) -m sphinx -q -W --keep-going -j auto -c docs -d build/docs/doctrees $(PAGES) $(SITE)
	$(Q)find $(SITE) -name '*.svg' -exec sed -i '/<metadata>/,/<\/metadata>/d' {} +  # the numbers drawn, for tests
	$(Q)$(PYTHON) docs/smaller.py $(SITE)/_static/styles/furo.css $(SITE)/_images/*.svg $(SITE)/*.html $(SITE)/source/*.html
	$(Q)find $(SITE) -name '*.css.map' -delete -o -name '*.js.map' -delete
	$(Q)cp docs/classroom.ipynb docs/grade.yml $(SITE) && cp -r $(EXPLORERS) $(SITE)/explorers
	$(Q)for part in $(MATHJAX_PARTS); do \
	  mkdir -p $(SITE)/mathjax/$$(dirname $$part) && \
	  cp -r $(MATHJAX)/$$part $(SITE)/mathjax/$$(dirname $$part) || exit 1; done
	@$(MAKE) --no-print-directory slides
	@touch $@

# The template forbids to enlarge a slide, and has its main landmark inside of what reveal.js calls an application.
slides:
	$(needs_sphinx)
	$(Q)rm -rf $(SITE)/slides build/docs/doctrees-slides
	$(Q)$(PYTHON) -m sphinx -q -W --keep-going -b revealjs -c docs/slides -d build/docs/doctrees-slides docs/slides $(SITE)/slides
	$(Q)sed -i 's/, maximum-scale=1.0, user-scalable=no//; s/ role="main"//' $(SITE)/slides/*.html

pages:
	$(needs_packages)
	@$(MAKE) BACKEND=cpu $(STEPS:%=build/cpu/%) walk
	$(PYTHON) -m plots.figures.pages $(RESULTS)/h200 docs build/cpu

.PHONY: notebook
notebook:
	$(PYTHON) -m tests.docs.notebook

check-docs: docs
	@$(MAKE) --no-print-directory $(JOBS) BACKEND=cpu $(STEPS:%=build/cpu/%)
	@$(PYTHON) -c 'import axe_playwright_python, playwright, pytest' 2>/dev/null || \
	  { echo "check-docs: Python needs axe-playwright-python, playwright and pytest. Install them: make deps"; exit 1; }
	$(PYTHON) -m pytest -q -n $(shell nproc) $(if $(EXHAUSTIVE),,-m "not exhaustive") tests/docs

# --- The explorers ----------------------------------------------------------------------------------

.PHONY: explorers

# Classic scripts and data in scripts, so that the pages work from file://.
explorers:
	@$(MAKE) --no-print-directory $(JOBS) BACKEND=cpu $(DATA)
	$(Q)cp docs/explorers/*.html docs/explorers/*.css docs/explorers/*.js $(EXPLORERS)
	@echo "explorers: fragments.html, banks.html, shares.html and timeline.html in $(EXPLORERS)"

ifeq ($(BACKEND),cpu)

EXPLORER_OBJECTS := $(patsubst docs/explorers/%.cu,$(BUILD)/explorers/%.o,$(wildcard docs/explorers/*.cu))
EXPLORED_STEPS := $(call steps_with,banks = ".*")
INCLUDED_STEPS := $(BUILD)/explorers/swizzle.cuh $(BUILD)/explorers/panels.cuh

# access.cu includes a step with swizzled rows, panels.cu one with panels. The explorers show fp16 only.
$(INCLUDED_STEPS): $(BUILD)/explorers/%.cuh: $$(call sources_of,$$(call steps_with,$$* = true)) $(REWRITER)
	@mkdir -p $(@D)
	$(Q)$(REWRITER) $< | sed '/CONFIG/s/__nv_bfloat16/__half/g' > $@

# For each step EXPLORE(stepNN, what its table says of its tiles).
$(BUILD)/explorers/explored.h: $(wildcard steps/*.toml)
	@mkdir -p $(@D)
	$(Q)for step in $(EXPLORED_STEPS); do \
	  sed -n "s/^banks = \"\(.*\)\"/EXPLORE($$step, \1)/p" steps/$${step}_*.toml; done > $@

# The checking builds of the steps, each descriptor by its own name.
$(EXPLORED_STEPS:%=$(BUILD)/explorers/%.o): $(BUILD)/explorers/%.o: $$(call checked_object,$$*)
	@mkdir -p $(@D)
	$(Q)$(OBJCOPY) --redefine-sym step_checked=$*_checked $< $@

$(EXPLORER_OBJECTS): $(BUILD)/explorers/%.o: docs/explorers/%.cu $(INCLUDED_STEPS) $(BUILD)/explorers/explored.h $(REWRITER) $(BUILD)/flags
	$(compile_cu)
	$(if $(filter panels,$*),$(Q)$(OBJCOPY) --keep-global-symbol=place_in_panels $@)
	$(if $(filter access,$*),$(Q)$(OBJCOPY) --localize-symbol=step $@)

$(EXPLORER_OBJECTS): private SIMT_FLAGS += -Idocs/explorers -I$(BUILD)/explorers
$(BUILD)/explorers/access.o: private SIMT_FLAGS += $(CHECKING)

$(BUILD)/explorers/explorer_data: $(EXPLORER_OBJECTS) $(EXPLORED_STEPS:%=$(BUILD)/explorers/%.o) \
    $(SIMT_OBJECTS) $(LAB_OBJECTS)
	$(call link_program)

$(EXPLORERS)/data/fragments.js $(EXPLORERS)/data/banks.js $(EXPLORERS)/data/shares.js: $(EXPLORERS)/data/%.js: $(BUILD)/explorers/explorer_data
	@mkdir -p $(@D)
	$(Q)$< $* > $@

endif

include docs/explorers/explorers.mk
