"""Bulk scoring of files: rows in, one result a row out, in parts that survive a kill. README.md tells how."""
