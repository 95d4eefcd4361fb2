"""What a config names: functions, optimizers, rules, metrics, rows."""
