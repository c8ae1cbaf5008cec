"""Level 1 between the processes of one host: its merger."""
