"""`holdfast demo`: the main job with a killed worker and a hung handler, and its books."""
