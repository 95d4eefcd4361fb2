"""PyMC's functions replaced by ours, for code that calls PyMC.

``names``       the names of functions in all modules of this process, and others in their place
``everywhere``  `everywhere`: which calls are ours, and which ones PyMC's own
``script``      a program in which they are ours as soon as it has imported PyMC

Our own modules import PyMC's functions from where they are defined, before any name is replaced.
"""
