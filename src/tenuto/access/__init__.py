"""Who may do what: roles and permissions, API keys, tokens, and the audit of what was done."""
