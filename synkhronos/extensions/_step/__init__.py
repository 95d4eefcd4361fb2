"""One step of training: gradient, reduction and update of all members in one command."""
