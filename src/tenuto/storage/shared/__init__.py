"""SQL that both dialects understand."""
