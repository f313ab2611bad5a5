"""Three ways to write a definition (decorated classes, a builder, JSON documents), compiled to one `Program`."""
