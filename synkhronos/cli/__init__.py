"""The commands of ``synk``: each file here without an underscore is a verb.

A verb's file has a docstring, ``arguments(parser)``, and ``run(options)``, which returns the exit
code: 0, or 1 if what was asked has failed. The docstring is the verb's help; its first line stands
in the list of verbs. A tuple ``ALIASES`` gives it further names. Only the file of the chosen verb
is imported, and its module imports only what reads arguments: help imports no numpy. ``run``
imports the rest. Modules of only the verb ``v`` lie in ``_v/``; other files serve several verbs.
"""
