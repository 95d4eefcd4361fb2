"""What the user holds: functions, Data, collectives, checks of consistency."""
