"""What crosses between processes: commands on channels, arrays on communicators.

==================  ==============================================================================
``channels``        carry commands to the members, and their outcomes back
``communicators``   move and reduce arrays between members
``serialization``   objects as bytes
``worker_output``   what workers print and log, on its way to the master
==================  ==============================================================================
"""
