"""The ledger: what the command gateway shows of jobs and steps. It follows from the events of their executions."""
