"""Kernels and models on NVIDIA GPUs, or on the emulator of their PTX."""
