"""What runtimes share and what needs only a store."""
