"""Fits without some rows, and predictions of rows that a fit has not seen.

======================  ==========================================================================
``cross_validation``    `cross_validate`: k folds, or one group left out after another
``reloo``               `reloo`: rows for which PSIS-LOO is not reliable
``lfo``                 `lfo`: a time series, of which each fit knows the past
``folds``               which rows are left out together
``fits``                ``Refits``: the common part of these three; runs the fits by `map`
``refit``               ``Refit`` and ``Carried``: the work of a process for an item
``weighted``            the model whose rows can be left out by data, so one compilation is enough
======================  ==========================================================================
"""
