# Every target makes .venv in this folder and installs what it needs there, never into an environment that is active.
# make run LESSONS="01 02" MODEL=smollm2-135m DEVICE=cpu DTYPE=fp32 PARAMS="max_new_tokens=32"
PYTHON ?= python3
LESSONS_LIB = .venv/bin/python -m lessons_lib
PIP_INSTALL = .venv/bin/python -m pip install -qq --disable-pip-version-check
# OpenMP's threads spin while they wait, which costs half the speed beside a busy program: less of it, unless you set it
export GOMP_SPINCOUNT ?= 1000

# what an active environment or settings for another one would change in .venv
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_PYTHON

LESSON_OPTIONS = $(LESSONS) $(if $(MODEL),--model '$(MODEL)') $(if $(DEVICE),--device $(DEVICE)) \
	$(if $(DTYPE),--dtype $(DTYPE)) $(if $(PARAMS),--params $(PARAMS))
SWEEP_OPTIONS = $(if $(GRID),--grid $(GRID)) $(if $(WORKERS),--workers $(WORKERS)) \
	$(if $(SCHEDULER),--scheduler-address '$(SCHEDULER)')

help:
	@$(PYTHON) -m lessons_lib --help
run: .venv/with-lessons
	@$(LESSONS_LIB) run $(LESSON_OPTIONS)
probe: .venv/with-lessons
	@$(LESSONS_LIB) probe $(if $(MODEL),--model '$(MODEL)') $(if $(DEVICE),--device $(DEVICE))
lab figures: .venv/with-lessons
	@$(LESSONS_LIB) $@
lessons: .venv/with-lessons
	@$(LESSONS_LIB) lessons $(LESSONS)
bench: .venv/with-lessons
	@$(LESSONS_LIB) bench $(CLAIMS) $(if $(QUESTIONS),--questions '$(QUESTIONS)') $(if $(QUICK),--quick)
sweep: .venv/with-sweep
	@$(LESSONS_LIB) sweep $(LESSON_OPTIONS) $(SWEEP_OPTIONS)
site: .venv/with-site
	@$(LESSONS_LIB) site
test: .venv/with-test
	@$(LESSONS_LIB) test $(LESSONS)
test-quick test-deep lint: .venv/with-test
	@$(LESSONS_LIB) $@
test-browser: .venv/with-browser
	@$(LESSONS_LIB) test-browser $(LESSONS) $(if $(FULL),--full)
mutation: .venv/with-mutation
	@$(LESSONS_LIB) mutation
peers: .venv/with-quantization .venv/with-llamacpp
clean:
	@$(PYTHON) -m lessons_lib clean

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
	@.venv/bin/python -c "from importlib.metadata import version; print('torch==' + version('torch'))" > .venv/constraints.txt
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
.PHONY: again help run probe lab figures lessons bench sweep site test test-quick test-deep lint test-browser mutation peers clean
.NOTPARALLEL:
