"""What workers and servers say to each other, and when a push counts. Pure logic."""
