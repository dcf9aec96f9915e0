"""Checks that a Parquet file has the columns and values of a CSV file."""

import csv
import sys
from datetime import timezone

import duckdb


def text(value):
    """A value as the CSV file has it."""
    if hasattr(value, "astimezone"):
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return "" if value is None else value


def same(value, cell):
    value = text(value)
    return cell == value if isinstance(value, str) else cell != "" and float(cell) == float(value)


parquet, csv_file = sys.argv[1:]
with open(csv_file, newline="") as lines:
    header, *rows = csv.reader(lines)
table = duckdb.sql(f"SELECT * FROM read_parquet('{parquet}')")
assert table.columns == header, (table.columns, header)
found = table.fetchall()
assert len(found) == len(rows) > 0, (found, rows)
for values, cells in zip(found, rows):
    for name, value, cell in zip(header, values, cells):
        assert same(value, cell), (name, value, cell)
print({name: str(kind) for name, kind in zip(table.columns, table.types)})
print("ok")
