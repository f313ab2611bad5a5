"""Real servers for tests: started on free loopback ports, ended by their process ids."""
