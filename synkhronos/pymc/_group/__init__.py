"""A group computes a model's likelihood: each member the part of its rows.

Each room imports only itself and the rooms before it.

==============  ==================================================================================
``likelihood``  the likelihood in a group: each member computes its rows, the sums are added
``rest_terms``  the terms that stay in the master, and their share of the time
``evaluator``   which group evaluates: this process's, or that of a chain's own process
``advice``      `advise`: measures and predicts the speed-up before sampling
``parallel``    `parallel`: divides a model's log-density until it is closed
==============  ==================================================================================
"""
