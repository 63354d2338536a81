"""The parts of benchmarks/gpu.sh, each a module that is run as a process of its own."""
