"""A worker's part in a job: membership, steps, leases, keys of rows."""
