"""The bus that carries directives to platform workers: a small port, and its adapters."""
