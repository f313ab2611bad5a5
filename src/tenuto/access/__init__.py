"""Access control: roles and permissions, API keys, tokens, and the audit log."""
