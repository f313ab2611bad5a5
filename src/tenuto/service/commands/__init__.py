"""The command gateway: commands become jobs, whose steps are dispatched over a bus and completed by callbacks."""
