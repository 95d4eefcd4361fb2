"""Objects that a config names: functions, optimizers, rules, metrics, rows."""
