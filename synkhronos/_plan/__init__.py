"""Plans: which rows each member gets, and how partial results combine.

Everything here is a pure function of its arguments. It knows no process, no group and no shared
memory, so it can be printed, compared and tested by itself.
"""
