# Every target calls `python -m lessons_lib`, where the work is done; without make, type that (README).
# make run LESSONS="01 02" MODEL=smollm2-135m DEVICE=cpu DTYPE=fp32 PARAMS="max_new_tokens=32"
PYTHON ?= python3
export TORCH_SPEC TORCH_INDEX  # another build of torch: see README

LESSON_OPTIONS = $(LESSONS) $(if $(MODEL),--model $(MODEL)) $(if $(DEVICE),--device $(DEVICE)) \
	$(if $(DTYPE),--dtype $(DTYPE)) $(if $(PARAMS),--params $(PARAMS))
SWEEP_OPTIONS = $(if $(GRID),--grid $(GRID)) $(if $(WORKERS),--workers $(WORKERS)) \
	$(if $(SCHEDULER),--scheduler-address $(SCHEDULER))

help:
	@$(PYTHON) -m lessons_lib --help
run:
	@$(PYTHON) -m lessons_lib run $(LESSON_OPTIONS)
sweep:
	@$(PYTHON) -m lessons_lib sweep $(LESSON_OPTIONS) $(SWEEP_OPTIONS)
lessons:
	@$(PYTHON) -m lessons_lib lessons $(LESSONS)
bench:
	@$(PYTHON) -m lessons_lib bench $(CLAIMS) $(if $(QUESTIONS),--questions $(QUESTIONS)) $(if $(QUICK),--quick)
test-browser:
	@$(PYTHON) -m lessons_lib test-browser $(LESSONS) $(if $(FULL),--full)
test:
	@$(PYTHON) -m lessons_lib test $(LESSONS)
test-quick test-deep mutation lab site figures lint clean:
	@$(PYTHON) -m lessons_lib $@

.PHONY: help run sweep lessons bench test-browser test test-quick test-deep mutation lab site figures lint clean
