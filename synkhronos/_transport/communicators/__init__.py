"""Communicators move arrays between members.

====================  ============================================================================
``communicator``      the interface of all of them
``solo``              a group of one
``shared_memory``     the members of one machine
``hierarchy``         several machines: shared memory on each, MPI between their leaders
``gpus``              members on GPUs: NCCL, on top of one of the two above
====================  ============================================================================

``between_nodes``, ``half_precision`` and ``nccl_types`` are not communicators: these use them.

Sums that are made while members compute have four files and a folder. ``sums`` says what they are.
``summing_process`` starts the process, which runs ``summing``. ``links`` connects it with those of
other nodes, and by the words of ``board`` it and its leader speak.

``_engine/startup.py``, ``worker.py`` and ``nodes.py`` choose a member's communicator.
"""
