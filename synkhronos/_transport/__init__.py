"""What moves between processes: commands on channels, arrays on communicators.

==================  ==============================================================================
``channels``        carry commands to the members, and reports back to the master
``communicators``   move and reduce arrays between members
``serialization``   objects as bytes
``worker_output``   what workers print and log
==================  ==============================================================================
"""
