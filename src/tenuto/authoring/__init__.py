"""Three ways to write a definition (decorated classes, a builder, JSON documents), and one thing that they all become."""
