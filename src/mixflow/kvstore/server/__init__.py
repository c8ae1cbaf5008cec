"""A server shard: rounds, reads, members, rules, and where its state is kept. Pure logic."""
