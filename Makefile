# make demo, make test: all that a machine needs is Python >= 3.11 with pip, a C++ compiler, make.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
BUILD_LOG = build/build.log
SOURCES = CMakeLists.txt pyproject.toml $(wildcard cmake/* cuda/* cuda/*/* cpu/*)
# More settings for the build, as in SETTINGS="-C cmake.define.CMAKE_CUDA_ARCHITECTURES=90".
SETTINGS ?=
# Unless something is set: no CUDA kernels where no GPU could run them, as those for every
# architecture take 25 minutes on two cores.
WITHOUT_GPU = $(if $(SETTINGS)$(JAX_SOFTMAX_CUDA)$(shell nvidia-smi -L 2> /dev/null),,\
    -C cmake.define.JAX_SOFTMAX_CUDA=off)
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal

# What tools/smoke.py runs.
SMOKE = warp registers tile block ring cluster split stream panel strided others

# Where bench-all writes, and the seconds after which each of its suites stops cleanly.
RESULTS ?= build/results
BUDGET ?= 600

.PHONY: demo test lint bench bench-all gpu-test sanitize check-kernels clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/python examples/train_lm.py

test: $(VENV)/installed
	$(PYTEST)

lint: $(VENV)/installed $(VENV)/linted
	PATH="$(abspath $(BIN)):$$PATH" pre-commit run --all-files --show-diff-on-failure

bench: $(VENV)/installed
	$(BIN)/python benchmarks/run.py --output benchmark.json
	$(BIN)/python benchmarks/plot.py benchmark.json benchmark.png

# Every suite; one that fails does not cost the next ones.
bench-all: $(VENV)/installed
	mkdir -p $(RESULTS)
	-for suite in columns odd shapes; do $(BIN)/python benchmarks/run.py --suite $$suite \
	    --budget $(BUDGET) --output $(RESULTS)/$$suite.json; done
	-for suite in graph programs latency memory sweep train fused; do $(BIN)/python benchmarks/$$suite.py \
	    --budget $(BUDGET) --output $(RESULTS)/$$suite.json; done
	$(BIN)/python benchmarks/plot.py $(RESULTS)/columns.json $(RESULTS)/columns.png
	$(BIN)/python benchmarks/choose.py $(RESULTS)/graph.json > $(RESULTS)/rule.txt

# On a machine with a GPU and everything installed: builds here, without network or isolation.
gpu-test:
	mkdir -p build
	$(PYTHON) -m pip install -v --no-build-isolation --no-deps -e . \
	    -C cmake.define.JAX_SOFTMAX_CUDA=on $(SETTINGS) > $(BUILD_LOG) 2>&1 || (tail -50 $(BUILD_LOG); exit 1)
	$(PYTHON) -m jax_softmax
	$(PYTHON) -m pytest -n auto --dist worksteal
	$(PYTHON) examples/train_lm.py

# A process for each tool and strategy: `make -j 20 -k sanitize`.
sanitize: $(foreach part,$(SMOKE),memcheck-$(part) racecheck-$(part))

# Two rules: a pattern rule of two targets would run once for both.
RUN_SANITIZER = XLA_PYTHON_CLIENT_PREALLOCATE=false compute-sanitizer --error-exitcode 1
memcheck-%:
	$(RUN_SANITIZER) --tool memcheck $(PYTHON) tools/smoke.py $*
racecheck-%:
	$(RUN_SANITIZER) --tool racecheck $(PYTHON) tools/smoke.py $*

# The log of a build from scratch with JAX_SOFTMAX_PTXAS_REPORT=ON for sm_90.
check-kernels: $(VENV)/installed
	$(BIN)/python tools/check_kernels.py $(BUILD_LOG)

$(VENV)/installed: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	mkdir -p build
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -v -e . --group demo --group test $(SETTINGS) $(WITHOUT_GPU) > $(BUILD_LOG) 2>&1 \
	    || (tail -50 $(BUILD_LOG); exit 1)
	grep "jax_softmax:" $(BUILD_LOG)
	touch $@

$(VENV)/linted: pyproject.toml $(VENV)/installed
	$(BIN)/python -m pip install -q --group lint
	touch $@

clean:
	rm -rf build $(VENV)
