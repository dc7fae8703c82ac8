# Every target makes .venv in this folder and installs what it needs there, never into an environment that is active.
# make run LESSONS="01 02" MODEL=smollm2-135m DEVICE=cpu DTYPE=fp32 PARAMS="max_new_tokens=32"
PYTHON ?= python3
VENV_PYTHON = .venv/bin/python
LESSONS_LIB = $(VENV_PYTHON) -m lessons_lib
PIP_INSTALL = $(VENV_PYTHON) -m pip install -qq --disable-pip-version-check
# OpenMP's threads spin while they wait, which costs half the speed beside a busy program: less of it, unless you set it
export GOMP_SPINCOUNT ?= 1000
# glibc asks Linux for memory in pages of 2 MB: in a virtual machine large tensors are then read up to twice as fast
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

# what an active environment or settings for another one would change in .venv
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_PYTHON

LESSON_OPTIONS = $(LESSONS) $(if $(MODEL),--model '$(MODEL)') $(if $(DEVICE),--device $(DEVICE)) \
	$(if $(DTYPE),--dtype $(DTYPE)) $(if $(PARAMS),--params $(PARAMS))
SWEEP_OPTIONS = $(if $(GRID),--grid $(GRID)) $(if $(WORKERS),--workers $(WORKERS)) \
	$(if $(SCHEDULER),--scheduler-address '$(SCHEDULER)')
BENCH_OPTIONS = $(CLAIMS) $(if $(QUESTIONS),--questions '$(QUESTIONS)') $(if $(QUICK),--quick)

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

# For those who read the course
run: .venv/with-lessons  ## execute the lessons into build/: pages, index and scorecard
	@$(LESSONS_LIB) run $(LESSON_OPTIONS)
lab: .venv/with-lessons  ## open JupyterLab on notebooks/
	@$(LESSONS_LIB) lab
probe: .venv/with-lessons  ## say what this machine can do, and which technique has how much room
	@$(LESSONS_LIB) probe $(if $(MODEL),--model '$(MODEL)') $(if $(DEVICE),--device $(DEVICE)) $(if $(DTYPE),--dtype $(DTYPE))
sweep: .venv/with-sweep  ## execute lessons over a grid of parameters: one table, and plots
	@$(LESSONS_LIB) sweep $(LESSON_OPTIONS) $(SWEEP_OPTIONS)
test: .venv/with-test  ## lint, unit and peer tests, then the lessons with nbval
	@$(VENV_PYTHON) -m tools.lint; lint=$$?; $(LESSONS_LIB) test $(LESSONS) && exit $$lint
bench: .venv/with-lessons  ## measure the claims into bench/results/, write RESULTS.md and README's tables
	@$(LESSONS_LIB) bench $(BENCH_OPTIONS)
	@$(if $(QUESTIONS)$(QUICK),,$(VENV_PYTHON) -m tools.readme)
peers: .venv/with-quantization .venv/with-llamacpp  ## install the libraries that lessons 10 and 11 run beside ours
clean:  ## remove build/ and the tools' caches; keeps .venv and models
	@rm -rf build docs/lessons .pytest_cache .ruff_cache .hypothesis lessons_lib.egg-info
	@find lessons_lib tools tests bench notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# For those who work on it
test-quick: .venv/with-test  ## lint, unit and peer tests
	@$(VENV_PYTHON) -m tools.lint; lint=$$?; $(LESSONS_LIB) test --quick && exit $$lint
test-deep: .venv/with-test  ## the property tests with two hundred times as many cases, LayerSkip with 50 prompts: over an hour
	@HYPOTHESIS_PROFILE=deep $(VENV_PYTHON) -m pytest -q -n auto --maxprocesses 4 --dist loadfile -m hypothesis tests/unit; \
	unit=$$?; HYPOTHESIS_PROFILE=deep $(VENV_PYTHON) -m pytest -q tests/peers/test_smol_layerskip.py && exit $$unit
test-browser: .venv/with-browser  ## lessons in JupyterLab in a real Chromium: all cells, all sliders
	@$(VENV_PYTHON) -m pytest -v tests/browser $(if $(FULL),--full) $(if $(LESSONS),--lessons $(LESSONS))
lint: .venv/with-test  ## ruff, which package imports which, dead code, and the house rules for lessons
	@$(VENV_PYTHON) -m tools.lint
lessons: .venv/with-lessons  ## execute the lessons, store their outputs in notebooks/, write README's tables and RESULTS.md
	@$(VENV_PYTHON) -m tools.store $(LESSONS); status=$$?; $(VENV_PYTHON) -m tools.readme && exit $$status
figures: .venv/with-lessons  ## draw imgs/
	@$(VENV_PYTHON) -m tools.drawings
site: .venv/with-site  ## all lessons, glossary, references and scorecard as pages in build/site/
	@$(VENV_PYTHON) -m sphinx -W --keep-going -n -q -d build/doctrees docs build/site && echo "Read build/site/index.html."
mutation: .venv/with-mutation  ## break the library in 400 small ways; count what the tests notice
	@$(VENV_PYTHON) -m tools.mutation

# A file .venv/with-EXTRA stands for that extra of pyproject.toml, installed with the pins.
.venv/with-%: .venv/torch pyproject.toml
	@echo "Installing lessons_lib[$*] into .venv: a minute or two"
	@$(PIP_INSTALL) -c .venv/constraints.txt -e ".[$*]"
	@touch $@

# torch comes first, because its build decides what else fits: the pin, or TORCH_SPEC from TORCH_INDEX. .venv/torch
# keeps such a choice, which stays until another one is made. An index alone goes with the pin of the day.
PIN := $(shell grep '^torch==' constraints.txt)
GIVEN := $(if $(TORCH_SPEC),'$(TORCH_SPEC)') $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)')
KEPT := $(shell cat .venv/torch 2>/dev/null)
CHOICE := $(or $(strip $(GIVEN)),$(strip $(KEPT)))
TORCH := $(if $(filter --index-url,$(firstword $(CHOICE))),'$(PIN)' $(CHOICE),$(or $(CHOICE),$(PIN) -c constraints.txt))
ifneq ($(CHOICE),$(KEPT))
OTHER_TORCH = again
endif

.venv/torch: .venv/bin/python constraints.txt $(OTHER_TORCH)
	@echo "Installing $(or $(CHOICE),$(PIN)) into .venv: a minute or two"
	@test ! -f $@ || touch -t 200001010000 $@  # out of date until all is done
	@$(if $(OTHER_TORCH),$(PIP_INSTALL) --force-reinstall --no-deps $(TORCH))
	@$(PIP_INSTALL) $(TORCH)
	@$(VENV_PYTHON) -c "from importlib.metadata import version; print('torch==' + version('torch'))" > .venv/constraints.txt
	@grep -v '^torch==' constraints.txt >> .venv/constraints.txt
	@echo "$(CHOICE)" > $@

# .venv is made again where pip does not work, as in a half-made one, and where the folder was moved, since pip wrote the
# old path into it. One that another program made, such as uv, is left alone.
SOUND = .venv/bin/python -c 'import pip' && \
	grep -qF -e "-m venv $(CURDIR)/.venv" -e "-m venv --clear $(CURDIR)/.venv" .venv/pyvenv.cfg
.venv/bin/python: $(shell { $(SOUND); } >/dev/null 2>&1 || echo again)
	@if test -f .venv/pyvenv.cfg && ! grep -q '^command = ' .venv/pyvenv.cfg; \
	then echo "Another program made .venv in this folder: rename or remove it, and type this again"; exit 1; fi
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11, 5) or sys.exit('The lessons need Python 3.11.5 or newer, and \
	this is ' + sys.version.split()[0] + ': name another one, as in make run PYTHON=python3.12')"
	@echo "Making the environment .venv"
	@$(PYTHON) -m venv --clear .venv || \
	{ rm -rf .venv; echo "Python cannot make an environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }

again:
.PHONY: again help run lab probe sweep test bench peers clean test-quick test-deep test-browser lint lessons figures site mutation
.NOTPARALLEL:
