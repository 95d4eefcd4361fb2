"""Parts of ``synk run``: hosts, the plan of a launch, processes, their output and ends."""
