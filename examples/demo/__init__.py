"""The services of `examples.orders` under faults, shown in a terminal: `python -m examples.demo`"""
