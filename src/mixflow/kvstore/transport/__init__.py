"""Ways of messages between processes: ZeroMQ, and faults on purpose."""
