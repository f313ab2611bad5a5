"""Three ways to write a definition (decorated classes, a builder, JSON documents), and the one thing they become."""
