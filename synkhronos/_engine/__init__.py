"""The group: its members, the commands they run, and the functions and variables they hold."""
