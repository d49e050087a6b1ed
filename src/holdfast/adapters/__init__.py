"""Ways of keeping the core's promises on real things."""
