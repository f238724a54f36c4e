"""picodl: deep learning in plain Python on numpy."""
