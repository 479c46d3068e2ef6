"""What is measured: one file a peer, each opened by name in a process of its own."""
