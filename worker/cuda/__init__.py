"""GPUs of a worker: which there are, how candidates are timed, what the driver tells of them."""
