"""Commands: everything that a master can ask of the members, itself included.

==================  ==============================================================================
``base``            what every command has
``call``            run a function: each member on its part of the rows
``clocks``          measure the phases of calls in all members
``collectives``     move and combine the values of shared variables
``definitions``     make functions and shared variables known to the members, or drop them
``tracing``         keep what all members do and when, and take it, on one time scale
==================  ==============================================================================
"""
