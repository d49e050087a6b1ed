"""The checks of `doctor`, each kind in a module of its own."""
