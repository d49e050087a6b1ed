"""What `doctor` looks at, each kind of check in a module of its own."""
