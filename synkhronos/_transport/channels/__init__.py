"""Channels carry commands to the workers and reports back; communicators move the arrays.

=====================================  ==========================================
the master's end                       a worker's end
=====================================  ==========================================
``post(command)`` -> number            ``next()`` -> number, command (None: quit)
``collect(number)`` -> reports         ``report(number, outcome)``
``commit(number)``, ``abandon()``      ``verdict(number)`` -> bool
``quit(grace)``, ``close()``           (``next()`` returns None)
=====================================  ==========================================

``channel.Channel`` describes the master's end. ``InlineChannel`` is for a group of one,
``one_node`` for the processes of one machine, whose workers have ``one_node_end``, ``multi_node``
for several machines: by ``leader_tree``, between members whose ranks ``placement`` knows.
``repeated_commands`` travel as numbers, and ``stalls`` names members that do not answer.
"""
