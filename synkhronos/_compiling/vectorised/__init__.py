"""Elementary and special functions that a compiler vectorises, for graphs in mode NUMBA.

libm's and SciPy's functions compute one number at a time, 5 to 60 ns each. These have neither
branches nor calls, so that a loop around them computes as many as the registers hold.

``table``          which scalar operations of PyTensor have code here
``tails``          two operations that PyTensor does not have
``ratios``         distances by a scale, whose derivatives do not overflow before they do
``op``             the operation that stands in a graph for one of PyTensor's
``rewrite``        replaces operations when a group's function is compiled
``indexed``        keeps loops with them apart from sums by index, which would not be vectorised
``dispatch``       tells PyTensor's numba linker the code
``code``           functions on numbers as numba code
``real``           numbers of a function that is being written in LLVM code
``exponentials``, ``logarithms``, ``powers``, ``normal``, ``gammas``, ``bessel``, ``angles``,
``quantiles``      the functions on numbers; ``quotients`` helps them
``coefficients``   their polynomials, which ``benchmarks/coefficients.py`` makes
"""
