"""Processes that this one starts: workers, and interpreters for other work.

====================  ============================================================================
``child_process``     ``ChildProcess``: whether a process lives, how it ended, its end
``worker``            ``Worker``: a member's process, by fork or in a fresh interpreter
``interpreter``       starts a fresh interpreter, which runs a function of a module
``guards``            end a process when its parent ends; a new process runs them first
``lasting_thread``    a thread that lives as long as the processes that it starts
``fork_safety``       whether this process can be forked, and why not
``interrupts``        Ctrl-C, delayed where a step is half done
``stopped``           processes that a signal has stopped, and a warning of them
``folded_stacks``     stacks as messages show them
``slots``             slots of cores, with a ``slot_process`` in each; ``slot_pipe`` is its end
====================  ============================================================================
"""
