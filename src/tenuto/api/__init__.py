"""The public Python API: `Engine`, `Handle`, `Batch`, lists, limits and commands."""
