"""The parts of benchmarks/gpu.sh, each a module that runs in its own process."""
