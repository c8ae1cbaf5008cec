"""A job's life: its processes, where they run, and what other terminals ask of it."""
