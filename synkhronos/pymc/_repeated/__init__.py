"""Rows that repeat: the sum over rows as a sum over fewer rows, whose value is the same.

Each room imports only itself and the rooms before it.

=================  ===============================================================================
``columns``        what a row depends on: its data as columns
``distinct``       which rows of columns are equal, bit by bit
``sums``           sums over the rows of each group, with one rounding
``pattern``        recognises PyMC's formula of a density
``families``       exponential families: what is summed, and the density of the sums
``affine``         locations that are affine in parameters
``least_squares``  least squares of many rows, as a triangular matrix
``indices``        indices that data give, and their errors
``form``           how a sum over rows is computed: the form that changes nothing
``cells``          the cells of an array as rows
``weighted``       the form of distinct rows with weights
``summed``         the form of sums by group
``quadratic``      the form of a Normal with an affine location and one scale
``choice``         which form is cheapest
=================  ===============================================================================
"""
