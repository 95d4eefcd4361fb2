"""Plans: which rows each member gets, and how these travel.

All of it are pure functions of their arguments. They know no process, group or shared memory.
"""
