"""Graph -> Graph passes, one file each, and the way to a plan (`pipeline.compile_graph`)."""
