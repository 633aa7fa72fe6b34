"""Code for GPUs: what blocks of threads need beyond the loop IR, schedules and code of CPUs."""
