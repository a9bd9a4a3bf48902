"""Kinds of tasks of the full level, by the apps they are about. A kind is a function (scene) -> Goal."""
