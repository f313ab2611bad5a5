"""Every measurement, one after another: `make bench`."""

from benchmarks import kernel_values

kernel_values.main([])
