"""Objects of the user: functions, Data, collectives, checks of consistency."""
