"""Running problems: prepare, run, sweep; histories, results and run folders."""
