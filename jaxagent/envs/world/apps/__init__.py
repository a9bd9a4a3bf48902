"""The apps of the full level, one file each: functions with their documentation, and an `App` that lists them."""
