"""What all faces have in common: problems, limits, credentials, pages, repeated requests."""
