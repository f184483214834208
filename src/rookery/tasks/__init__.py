"""Ready-made tasks: a problem, data, initial values and metrics under one name."""
