"""What `synk run` does: hosts, the plan of a launch, its processes, their output and their ends."""
