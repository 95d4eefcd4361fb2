"""Words at the head of each member's region: one writer each, and any number of readers.

===================  =============================================================================
``control_words``    the layout of the head
``ordered_words``    words that all cores see in the order of the program
``waiting``          ``Waiter``: wait until a word has changed, and watch for deaths meanwhile
``node``             ``Node``: a member's access to the memory of its machine; barriers
``peers``            ``Peers``: the other members, as a long command sees them
``status``           what other processes of the user may read of a group
``worker_output``    what workers print and log, on its way to the master
===================  =============================================================================
"""
