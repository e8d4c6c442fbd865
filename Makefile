# The short commands. Everything else is CMake's: cmake --preset dev, ctest --preset dev.
#
#   make             build/shardrun, a Release build, and its part for GPUs where there is a CUDA toolkit
#   make run         builds without that part, then trains a small GPT on this repository's own prose with two ranks
#   make test        builds and runs every test
#   make install PREFIX=/opt/shardrun
#   make package     build-package/shardrun_*.deb and .tar.gz, for other machines (docs/install.md)
#   make bench       measures and writes bench/RESULTS.md (docs/performance.md); BENCH=collectives for a part of it
#   make asan        builds with AddressSanitizer and UndefinedBehaviorSanitizer, and runs every test
#   make tsan        builds with ThreadSanitizer, and runs the tests with several ranks (docs/security.md)
#   make fuzz        bad files for the readers, made by libFuzzer for FUZZ_SECONDS=60 each (docs/security.md)
#   make format      clang-format in place        make lint    clang-format and clang-tidy, changing nothing
#
# Build type and options: make CMAKE_FLAGS='-DSHARDRUN_NATIVE=OFF'. Tests by name or label: make test CTEST='-L unit'.
BUILD ?= build
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
CTEST ?=
JOBS ?= $(shell nproc)
STEPS ?= 800
SEED ?= 0
BENCH ?=
FUZZ_SECONDS ?= 60

# A container's root may run MPI, and more ranks than cores; each rank may use every core it is given.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
MPIRUN ?= mpirun --oversubscribe --bind-to none

all: build

setup:
	@scripts/setup

# Configured each time (a second): a changed option, pinned version or processor is noticed.
configure: setup
	@cmake --preset release -B $(BUILD) --log-level=WARNING $(CMAKE_FLAGS) >/dev/null

build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target shardrun_installed

command: configure
	@cmake --build $(BUILD) -j $(JOBS) --target shardrun_cli

# Prose to learn from: one file of bytes.
$(BUILD)/docs.txt: README.md $(wildcard docs/*.md)
	@mkdir -p $(BUILD) && cat $^ > $@

# What `make run` trains, and what it ends with.
TRAIN = $(MPIRUN) -np 2 $(BUILD)/shardrun train $(BUILD)/gpt-tiny.onnx --data text:$(BUILD)/docs.txt \
  --batch 8 --lr 3e-3 --schedule cosine --warmup $$(($(STEPS) / 8)) --eval-every 100 \
  --seed $(SEED) --checkpoint $(BUILD)/run
SAMPLE = $(BUILD)/shardrun sample $(BUILD)/gpt-tiny.onnx --resume $(BUILD)/run --prompt "shardrun " \
  --tokens 300 --temperature 0.8 --top-k 40 --seed $(SEED)

run: command $(BUILD)/docs.txt
	@rm -rf $(BUILD)/run
	$(BUILD)/shardrun model gpt --preset tiny --seed $(SEED) -o $(BUILD)/gpt-tiny.onnx
	$(TRAIN) --steps $(STEPS)
	$(SAMPLE)
	@printf '%s\n' "" "go on:  $(TRAIN) --steps $$((2 * $(STEPS))) --resume" 'sample: $(SAMPLE)' \
	  'export: $(BUILD)/shardrun export $(BUILD)/run -o $(BUILD)/gpt-tiny-trained.safetensors'

# Two tests a processor: those of ranks that stop or vanish mostly wait.
test: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error --no-label-summary -j $$((2 * $(JOBS))) $(CTEST)

# Each in a folder of its own, build-asan and build-tsan. A part: make asan CTEST='-R launcher_failure'.
asan: setup
	@cmake --preset asan --log-level=WARNING -DSHARDRUN_UNITED=ON $(CMAKE_FLAGS) >/dev/null
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS) $(CTEST)

# Ranks are threads in collectives' and the executor's tests, processes in those called mpi.
tsan: setup
	@cmake --preset tsan --log-level=WARNING -DSHARDRUN_UNITED=ON $(CMAKE_FLAGS) >/dev/null
	@cmake --build --preset tsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS) $(if $(CTEST),$(CTEST),-R '^(collectives|exec|launcher|planner_mcts|cuda_nccl)')

bench: build
	@bench/run --shardrun $(BUILD)/shardrun $(BENCH)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

package:
	@scripts/setup --package
	@cmake --preset package --log-level=WARNING $(CMAKE_FLAGS) >/dev/null
	@cmake --build --preset package -j $(JOBS)
	@cd build-package && cpack

fuzz:
	@FUZZ_SECONDS=$(FUZZ_SECONDS) JOBS=$(JOBS) scripts/fuzz

format:
	@scripts/format

lint: configure
	@scripts/format --check

clean:
	@rm -rf $(BUILD)

.PHONY: all setup configure build command run test asan tsan bench package fuzz install format lint clean
