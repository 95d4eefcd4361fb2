"""`sbc`: whether fits to simulated data find the parameters that the data come from.

==============  ==================================================================================
``sbc``         `sbc`: draws parameters and data, gives fits to `map`, and gathers ranks
``simulation``  ``Simulation``: what a process does for one data set
==============  ==================================================================================
"""
