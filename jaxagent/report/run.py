"""Report of a finished run folder."""

from pathlib import Path


def write_report(folder: Path) -> None:
    print(folder)
