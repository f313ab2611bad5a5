"""Drives the kernel: the port of runtimes, and the runtimes themselves."""
