# Two commands are enough on a fresh Debian 12 machine: `make demo` and `make test`.
JOBS ?= $(shell nproc)
# Seconds that each fuzzing entry runs for in `make test`.
FUZZ_SECONDS ?= 10
PARFAIT := build/release/parfait
EXAMPLE := examples/minilm/minilm_mixed.safetensors

.PHONY: build demo test test-release test-asan test-tsan fuzz bench format install setup clean

build: setup
	@cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build --preset release --parallel $(JOBS) --target parfait_cli parfait

setup:
	@tools/setup.sh
	@mkdir -p build

demo: build
	@tools/demo.sh $(PARFAIT) $(EXAMPLE)

# The fuzzers first, then the suite under the sanitizers, then as users build it.
test: fuzz test-asan test-release

test-release: build
	@cmake --build --preset release --parallel $(JOBS)
	ctest --preset release --parallel $(JOBS)

test-asan test-tsan: test-%: setup
	@cmake --preset $* >build/configure-$*.log 2>&1 || { cat build/configure-$*.log; exit 1; }
	@cmake --build --preset $* --parallel $(JOBS)
	ctest --preset $* --parallel $(JOBS)

fuzz: setup
	@cmake --preset fuzz >build/configure-fuzz.log 2>&1 || { cat build/configure-fuzz.log; exit 1; }
	@cmake --build --preset fuzz --parallel $(JOBS) --target fuzz_container fuzz_index fuzz_markers
	fuzz/run.sh build/fuzz $(FUZZ_SECONDS)

# Headers first, then the linear layers and attention beside the peers that are found. BENCH adds
# options, as in make bench BENCH='--peer "python3 bench/peer_torch.py"'.
bench: build
	bench/run.py $(PARFAIT)
	$(PARFAIT) bench $(BENCH)

format: setup
	git ls-files '*.cc' '*.h' | xargs clang-format -i

install: build
	cmake --install build/release

clean:
	rm -rf build
