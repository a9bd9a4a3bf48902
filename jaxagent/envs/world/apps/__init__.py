"""The apps of the full level, one file each: documented functions, and an `App` that lists them."""
